"""Follows a cell's code over abstract values: does it create or use memory on a GPU?

Branches whose test is known take one way only; functions and classes of the session are followed at their calls with
their arguments. Every loop body is followed once. A guess with reasons; the devices have the last word at run time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from looseleaf.recipe.cues import is_host_attr
from looseleaf.recipe.dynamic import root_name
from looseleaf.recipe.outside import NO_BACKGROUND, Background, CueKind, DeviceCue, OutsideRules
from looseleaf.recipe.tree import UNPARSEABLE, Handlers, parse
from looseleaf.recipe.values import UNKNOWN, Value, chooses_gpu, is_gpu_name, join, known

Lookup = Callable[[str], Value]

_ASKS_FOR_GPUS = re.compile(
    r"\b(is_available|device_count|list_physical_devices|(local_)?devices\(|get_device_(name|properties|capability)|"
    r"mem_get_info|default_backend)"
)


class DeviceWalk(OutsideRules):
    """One walk over one cell. `lookup` gives what is known of session names; it is never told of changes.

    `saved`: what the cell adds to `Background.saved_on_gpu`. `shell_cues`: how many of the cues are shell lines'.
    """

    def __init__(self, lookup: Lookup, background: Background = NO_BACKGROUND) -> None:
        super().__init__(background)
        self._lookup = lookup
        self._star_modules = list(background.star_modules)
        self.cues: list[DeviceCue] = []
        self.used_resident: set[str] = set()

    @property
    def changes(self) -> dict[str, Value]:
        """What the walk knows of session names that the cell bound or moved."""
        return self.frames[0]

    def run(self, tree: ast.Module) -> None:
        """Follows a whole cell."""
        self.body(tree.body)

    def cue(self, text: str, confidence: float, kind: CueKind = "compute") -> None:
        if self.active:
            text = f"calls `{self.active[0].name}`, where {text}"
        self.cues.append(DeviceCue(text, confidence, kind))

    def best_cue(self) -> DeviceCue | None:
        """The surest cue, the first of equals; None if nothing uses a GPU."""
        return max(self.cues, key=lambda c: c.confidence, default=None)

    # Names.

    def name(self, name: str) -> Value:
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        return self._lookup(name)

    def load(self, name: str) -> Value:
        """The value of `name` where it is used; a resident session value is a cue."""
        value = self.name(name)
        if value.resident and name not in self.used_resident and not any(name in f for f in self.frames):
            self.used_resident.add(name)
            self.cue(f"`{name}` is on the GPU", 0.99 if value.exact else 0.85, "resident")
        return value

    def bind(self, name: str, value: Value) -> None:
        self.frames[-1][name] = value

    def target(self, target: ast.expr, value: Value) -> None:
        """Binds `target` to `value`, or to unknown parts of it."""
        if isinstance(target, ast.Name):
            self.bind(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = [value.part()] * len(target.elts)
            if value.known and isinstance(value.flag, (list, tuple)) and len(value.flag) == len(parts):
                parts = [known(flag) for flag in value.flag]
            for element, part in zip(target.elts, parts, strict=True):
                # `model, preprocess = clip.load(...)`: only the model is on the device.
                on_host = isinstance(element, ast.Name) and is_host_attr(element.id)
                self.target(element, UNKNOWN if on_host and not part.known else part)
        elif isinstance(target, ast.Starred):
            self.target(target.value, value.part())
        elif isinstance(target, ast.Attribute):
            owner = self.eval(target.value)
            if isinstance(target.value, ast.Name):
                self.rebind(target.value.id, owner.with_attr(target.attr, value))
        elif isinstance(target, ast.Subscript):
            self._store_item(target, value)

    def _store_item(self, target: ast.Subscript, value: Value) -> None:
        owner, key = self.eval(target.value), self.eval(target.slice)
        if not isinstance(target.value, ast.Name):
            return
        entry = key.known and isinstance(key.flag, (str, int)) and value.known
        if entry and isinstance(owner.flag, dict):
            self.rebind(target.value.id, replace(owner, known=True, flag={**owner.flag, key.flag: value.flag}))
        elif entry and owner == UNKNOWN and isinstance(key.flag, str) and chooses_gpu(key.flag, value.flag):
            self.rebind(target.value.id, known({key.flag: value.flag}))
        elif value.resident:
            self.rebind(target.value.id, owner.on_device())
        elif value.armed:
            self.rebind(target.value.id, replace(owner, armed=True))

    def rebind(self, name: str, value: Value) -> None:
        for frame in reversed(self.frames):
            if name in frame:
                frame[name] = value
                return
        self.frames[0][name] = value

    def move(self, node: ast.expr) -> None:
        """`node.cuda()` as a statement: a module moves in place."""
        name = root_name(node)
        if name:
            self.rebind(name, self.name(name).on_device())

    def cue_in(self, program: str) -> DeviceCue | None:
        walk = DeviceWalk(lambda _: UNKNOWN, Background(uses_framework=lambda: True))
        try:
            walk.run(parse(program))
        except UNPARSEABLE:
            return None
        # No question of another process is answered for the pool.
        asks = walk.asks and _ASKS_FOR_GPUS.search(program) is not None
        return walk.best_cue() or (DeviceCue("it asks for a GPU", 0.8) if asks else None)

    # Statements.

    def body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            method = _DO[type(statement)]
            if method is not None:
                method(self, statement)
            else:
                self.children(statement)

    def children(self, node: ast.AST) -> None:
        """Follows every expression and statement below `node` in order."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.eval(child)
            elif isinstance(child, ast.stmt):
                self.body([child])
            elif not isinstance(child, (ast.expr_context, ast.operator)):
                self.children(child)

    def do_Expr(self, node: ast.Expr) -> None:
        value = self.eval(node.value)
        call = node.value
        if (
            value.resident
            and isinstance(call, ast.Call)
            and any(isinstance(n, ast.Attribute) and n.attr in ("cuda", "to", "to_device") for n in ast.walk(call.func))
        ):
            self.move(call.func)

    def do_Assign(self, node: ast.Assign) -> None:
        self._assign(node.targets, node.value)

    def _assign(self, targets: Sequence[ast.expr], expr: ast.expr) -> None:
        for target in targets:
            if (
                isinstance(target, (ast.Tuple, ast.List))
                and isinstance(expr, (ast.Tuple, ast.List))
                and len(target.elts) == len(expr.elts)
            ):
                values = [self.eval(e) for e in expr.elts]
                for element, value in zip(target.elts, values, strict=True):
                    self.target(element, value)
                return
        value = self.eval(expr)
        for target in targets:
            self.target(target, value)
        # `m = Net().cuda()` moves what the chain began with, `n = m.cuda()` too.
        if (
            value.resident
            and isinstance(expr, ast.Call)
            and isinstance(expr.func, ast.Attribute)
            and expr.func.attr == "cuda"
        ):
            bound = {t.id for t in targets if isinstance(t, ast.Name)}
            if (
                isinstance(expr.func.value, ast.Name)
                and expr.func.value.id not in bound
                and self.name(expr.func.value.id).cls
            ):
                self.move(expr.func.value)

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        value = self.eval(node.value)
        if isinstance(node.target, ast.Name):
            old = self.load(node.target.id)
            self.bind(node.target.id, Value(resident=old.resident or value.resident))
        else:
            self.eval_target(node.target)

    def eval_target(self, target: ast.expr) -> None:
        """Follows the parts of an attribute or subscript target."""
        for child in ast.iter_child_nodes(target):
            if isinstance(child, ast.expr):
                self.eval(child)

    def do_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.frames[-1].pop(target.id, None)
            else:
                self.eval_target(target)

    def do_If(self, node: ast.If) -> None:
        test = self.eval(node.test)
        if test.known:
            self.body(node.body if test.flag else node.orelse)
        else:
            self._either([node.body, node.orelse])

    def _either(self, bodies: Sequence[Sequence[ast.stmt]]) -> None:
        """One of `bodies` runs."""
        before = [dict(frame) for frame in self.frames]
        ends: list[list[dict[str, Value]]] = []
        for statements in bodies:
            self.frames = [dict(frame) for frame in before]
            self.body(statements)
            ends.append(self.frames)
        merged = ends[0]
        for other in ends[1:]:
            merged = [self._merge(one, two, old) for one, two, old in zip(merged, other, before, strict=True)]
        self.frames = merged

    def _merge(self, one: dict[str, Value], two: dict[str, Value], old: dict[str, Value]) -> dict[str, Value]:
        merged = {}
        for name in dict.fromkeys((*one, *two)):
            base = old.get(name, self._lookup(name))
            first, second = one.get(name, base), two.get(name, base)
            # A name that only one path binds has that path's value, if it is bound at all.
            merged[name] = first if second == UNKNOWN else second if first == UNKNOWN else join(first, second)
        return merged

    def do_For(self, node: ast.For | ast.AsyncFor) -> None:
        items = self.eval(node.iter)
        self.target(node.target, items.part())
        self.body(node.body)
        self.body(node.orelse)

    do_AsyncFor = do_For

    def do_While(self, node: ast.While) -> None:
        test = self.eval(node.test)
        if not test.known or test.flag:
            self.body(node.body)
        self.body(node.orelse)

    def do_Try(self, node: ast.Try | ast.TryStar) -> None:
        self.body(node.body)
        self.body(node.orelse)
        straight = [dict(frame) for frame in self.frames]
        for handler in node.handlers:
            # What an error path binds is not what the session has as a rule.
            self.body(handler.body)
            self.frames = [{**frame, **kept} for frame, kept in zip(self.frames, straight, strict=True)]
        self.body(node.finalbody)

    do_TryStar = do_Try

    def do_With(self, node: ast.With | ast.AsyncWith) -> None:
        default = self.default_gpu
        for item in node.items:
            value = self.eval(item.context_expr)
            if value.known and is_gpu_name(value.flag):
                # `with torch.device("cuda"):`
                self.default_gpu = True
            if item.optional_vars is not None:
                self.target(item.optional_vars, value)
        self.body(node.body)
        self.default_gpu = default

    do_AsyncWith = do_With

    def do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bind(node.name, self.decorated(node, self.code_value(node)))

    do_AsyncFunctionDef = do_FunctionDef

    def do_ClassDef(self, node: ast.ClassDef) -> None:
        attrs = {}
        for child in node.body:
            if isinstance(child, ast.Assign):
                value = self.eval(child.value)
                attrs.update({t.id: value for t in child.targets if isinstance(t, ast.Name)})
        self.bind(node.name, self.decorated(node, self.code_value(node, attrs)))

    def do_Return(self, node: ast.Return) -> None:
        value = self.eval(node.value) if node.value is not None else known(None)
        self.returns(value)

    def do_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            self.bind(alias.asname or top, Value(path=alias.name if alias.asname else top))

    def do_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self._star_modules.append(node.module or "")
            else:
                self.bind(alias.asname or alias.name, Value(path=f"{node.module or ''}.{alias.name}"))

    def star_path(self, name: str) -> str:
        """The path that an unresolved `name` may have come by from a star import, empty without one."""
        return f"{self._star_modules[-1]}.{name}" if self._star_modules else ""


_DO = Handlers(DeviceWalk, "do_")
