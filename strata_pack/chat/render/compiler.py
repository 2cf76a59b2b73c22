"""Compiles a template to Python code that charges every step to the budget of the running rendering.

The generated code calls methods of its environment (``sandbox.py``): ``counter`` returns the function ``step``, which
charges for a block of statements, ``stepped`` charges for the test of a loop, ``made`` for a container, ``walked``
before a value is compared or hashed; ``joined`` and ``joined_escaped`` implement the operator ``~``. Only literals are
evaluated at compile time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.compiler import operators as OPERATOR_TEXTS

from strata_pack.chat.render.budget import SCALARS


class CountingCode(CodeGenerator):
    """Compiles a template to code that charges its steps, and charges before it traverses or copies a value."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("step()")
        super().blockvisit(nodes, frame)

    def write_commons(self) -> None:
        self.writeline("step = environment.counter()")
        super().write_commons()

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        """Evaluate only literals at compile time, because results become part of the compiled source."""
        if not isinstance(node, (nodes.Const, nodes.TemplateData)):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        if node.test is not None:
            line = node.test.lineno
            node.test = nodes.And(nodes.EnvironmentAttribute("stepped", lineno=line), node.test, lineno=line)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        escaped = frame.eval_ctx.autoescape or frame.eval_ctx.volatile
        self.ask("joined_escaped" if escaped else "joined", node.nodes, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        simple = _is_plain(node.expr) or (len(node.ops) == 1 and _is_plain(node.ops[0].expr))
        visit = self.visit if simple else self._visit_walked
        self.write("(")
        visit(node.expr, frame)
        for part in node.ops:
            self.write(f" {OPERATOR_TEXTS[part.op]} ")
            visit(part.expr, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.made(")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.made({")
        for pair in node.items:
            self._visit_walked(pair.key, frame)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("})")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.ask("made", [node.node], frame)
        self.write("[")
        self.visit(node.arg, frame)
        self.write("]")

    def _visit_walked(self, node: nodes.Expr, frame: Frame) -> None:
        if _is_plain(node):
            self.visit(node, frame)
        else:
            self.ask("walked", [node], frame)

    def ask(self, method: str, arguments: Iterable[nodes.Expr], frame: Frame) -> None:
        """Emit the call of a method of the environment."""
        self.write(f"environment.{method}(")
        for argument in arguments:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


def _is_plain(node: nodes.Expr) -> bool:
    """Return whether ``node`` is a literal string, number, boolean or none: comparing with it is cheap."""
    return isinstance(node, nodes.Const) and isinstance(node.value, SCALARS)
