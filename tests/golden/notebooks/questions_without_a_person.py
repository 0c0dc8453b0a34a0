# Where nobody can answer, questions are errors at once, here and on the GPU; code may catch them and go on.
# gpu-cells: 8
# %% setup
import getpass
import sys

def asked(ask):
    try:
        return ask()
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0][:60]
# %% input gpu
asked(lambda: input("name? "))
# %% input-here
asked(lambda: input("name? "))
# %% password gpu
asked(lambda: getpass.getpass("key: "))
# %% password-here
asked(getpass.getpass)
# %% stdin gpu
asked(sys.stdin.readline), sys.stdin.isatty()
# %% stdin-here
asked(sys.stdin.readline), sys.stdin.isatty()
# %% in-a-loop gpu
answers = []
for question in ("a? ", "b? "):
    answers.append(asked(lambda: input(question))[0])
answers
# %% replaced gpu
import builtins
kept, builtins.input = builtins.input, lambda prompt="": f"answered {prompt}"
try:
    print(input("by the cell"))
finally:
    builtins.input = kept
# %% replaced-here
asked(lambda: input("again"))
# %% confirm gpu
def confirm(text):
    try:
        return input(f"{text} [y/n] ") == "y"
    except Exception:
        return False

confirm("delete")
# %% confirm-here
confirm("delete")
# %% name-error gpu raises
raw_input("python 2? ")
# %% after gpu
print("goes on")
