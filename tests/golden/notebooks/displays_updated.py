# Displays that later cells, here and on the GPU, update, clear and publish again.
# gpu-cells: 14
# %% setup
from IPython.display import HTML, DisplayHandle, Markdown, clear_output, display, publish_display_data, update_display
# %% first gpu
handle = display("state 0", display_id=True)
for i in range(1, 4):
    handle.update(f"state {i}")
# %% second-here
handle.update("from the kernel")
isinstance(handle, DisplayHandle)
# %% named gpu
display(HTML("<b>a</b>"), display_id="a")
display(HTML("<b>b</b>"), display_id="b")
update_display(HTML("<i>a</i>"), display_id="a")
# %% named-here
update_display("b is plain now", display_id="b")
# %% named-again gpu
display("a second place", display_id="a")
# %% named-all gpu
update_display(Markdown("*both places*"), display_id="a")
# %% unknown gpu
update_display("nobody shows it", display_id="never-made")
print("no error")
# %% clear gpu
print("gone")
display("gone, too")
clear_output()
display("stays")
# %% clear-wait gpu
for i in range(3):
    clear_output(wait=True)
    display({"step": i})
    print("step", i)
# %% clear-last gpu
print("shown until something follows")
clear_output(wait=True)
# %% clear-error gpu raises
print("gone")
clear_output()
raise ValueError("behind the cleared output")
# %% clear-here
print("gone")
clear_output()
print("stays")
# %% published gpu
publish_display_data({"text/plain": "two forms", "text/html": "<u>two forms</u>"}, metadata={"text/html": {"isolated": True}})
publish_display_data({"text/plain": "with an id"}, transient={"display_id": "p"})
# %% published-here
publish_display_data({"text/plain": "updated"}, transient={"display_id": "p"}, update=True)
# %% in-function gpu
def report(value):
    display(Markdown(f"**{value}**"))
    return display(value, display_id=f"value-{value}")

place = report(1)
place.display_id
# %% in-function-here
place.update("one")
report(2).update("two");
# %% result-of-display gpu
print(display("nothing is returned"))
# %% include gpu
display({"k": 1}, include=["text/plain"])
display(HTML("<p>only html</p>"), exclude=["text/plain"])
# %% display-nothing gpu
display()
display(None)
