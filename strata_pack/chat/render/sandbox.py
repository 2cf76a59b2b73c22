"""Builds the environment of a template: the names that transformers defines, jinja2's sandbox, the budget.

The compiled template charges the running rendering's ``Budget``: for each block of statements, each loop iteration, and
before each operation that can create large values (see ``guards.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from string import Formatter
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import Any, NoReturn, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, markup_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from markupsafe import Markup

from strata_pack.chat.render.budget import (
    SCALARS,
    Budget,
    LimitExceeded,
    RenderLimits,
    Spending,
    counted,
    current,
    printed_chars,
    total_chars,
)
from strata_pack.chat.render.compiler import CountingCode
from strata_pack.chat.render.failures import TemplateError, TemplateLimit, TemplateRefused
from strata_pack.chat.render.functions import Namespace, check_format_spec, check_strftime, lipsum
from strata_pack.chat.render.guards import (
    BUILTINS,
    METHODS,
    OPERATORS,
    check_method,
    guarded,
    guarded_filters,
    guarded_tests,
)

MAX_INDENT = 16
ESCAPED = 6
"""Maximum characters of one escaped character in HTML."""

TEMPLATE_FILE = "<template>"
"""The file name that jinja2 gives to a template from a string."""

DICT_ATTRIBUTES = frozenset(dir(dict))
TEXT_METHODS = frozenset(METHODS[str])
PLAIN = frozenset((str, int, bool, float))
METHOD_TYPES = (BuiltinMethodType, MethodType)


class _Raised(Exception):
    """The exception that ``raise_exception`` raises in the template."""


# Extensions of transformers to jinja2.


class GenerationBlock(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``: transformers' block, without effect on the output."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: object) -> NoReturn:
    current().walk(message)
    raise _Raised(str(message))


def strftime_now(pattern: str) -> str:
    """Return the local time formatted by ``pattern``, as in transformers; raises jinja2's error for an invalid
    pattern."""
    check_strftime(pattern)
    return datetime.now().strftime(pattern)


@cache
def _json_encoder(ensure_ascii: bool, sort_keys: bool) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=ensure_ascii, sort_keys=sort_keys)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return ``json.dumps``; with indentation, which can multiply the size, in pieces."""
    budget = current()
    if indent is None and separators is None:
        text = _json_encoder(bool(ensure_ascii), bool(sort_keys)).encode(value)
        budget.text(len(text))
        return text
    if (indent if isinstance(indent, int) else len(indent or "")) > MAX_INDENT:
        raise LimitExceeded(f"indents JSON by more than {MAX_INDENT}")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces: list[str] = []
    for piece in encoder.iterencode(value):
        budget.step()
        budget.text(len(piece))
        pieces.append(piece)
    return "".join(pieces)


# The environment.


def _walked(value: Any) -> Any:
    """Return ``value`` after charging for its traversal (to print, compare or hash it)."""
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, GeneratorType):
        value = counted(value)
    current().walk(value)
    return value


def _drop_context(named: dict[str, Any]) -> None:
    """Drop what compiled code gives to every call for functions that take the context."""
    named.pop("_loop_vars", None)
    named.pop("_block_vars", None)


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """The environment whose methods the compiled code calls."""

    intercepted_binops = frozenset(OPERATORS)

    @property
    def stepped(self) -> bool:
        current().step()
        return True

    walked = staticmethod(_walked)

    @staticmethod
    def counter() -> Callable[[], None]:
        """Return the function that charges a step to the running rendering."""
        return current().step

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        pieces = pieces if isinstance(pieces, list) else list(pieces)
        current().text(sum(map(len, pieces)))
        return "".join(pieces)

    @staticmethod
    def joined(*values: Any) -> str:
        """The operator ``~``."""
        current().text(total_chars(values))
        return "".join(map(str, values))

    @staticmethod
    def joined_escaped(*values: Any) -> str:
        """The operator ``~`` where ``autoescape`` is on."""
        current().text(ESCAPED * total_chars(values))
        return markup_join(values)

    @staticmethod
    def made(value: Any) -> Any:
        """Return ``value``, a container that was just created or will be sliced, after charging for it."""
        current().copies(value)
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current()
        budget.step()
        budget.walk(left, right)
        OPERATORS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As jinja2's, without its long checks where they always pass: for an entry of a dict, a plain value of a
        namespace or a loop, an allowed method of a string."""
        kind = type(obj)
        if kind is dict:
            if attribute not in DICT_ATTRIBUTES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif kind is str:
            if attribute in TEXT_METHODS:
                return getattr(obj, attribute)
        elif (kind is Namespace or kind is LoopContext) and not attribute.startswith("_"):
            value = getattr(obj, attribute, None)
            if type(value) in PLAIN:
                return value
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, _walked(argument))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        owner = getattr(__obj, "__self__", None)
        kind = type(__obj)
        direct = kind is Macro or __obj is Namespace
        if kind in METHOD_TYPES and isinstance(owner, BUILTINS):
            direct = kind is BuiltinMethodType
            if kwargs:
                _drop_context(kwargs)
            args = check_method(owner, __obj.__name__, args, kwargs)
        elif kind is not Macro:
            budget.walk(*args, *kwargs.values())
        if direct:
            if kwargs:
                _drop_context(kwargs)
            result = __obj(__context.eval_ctx, *args, **kwargs) if kind is Macro else __obj(*args, **kwargs)
        else:
            result = super().call(__context, __obj, *args, **kwargs)
        budget.copies(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return ``str.format`` with measured fields; jinja2's own rules decide which fields are safe."""
        if super().wrap_str_format(value) is None:
            return None
        template, by_map = value.__self__, value.__name__ == "format_map"
        escapes = isinstance(template, Markup)
        formatter = _EscapeFormatter(self, escape=template.escape) if escapes else _Formatter(self)

        def formatted(*args: Any, **kwargs: Any) -> str:
            text = formatter.vformat(template, () if by_map else args, args[0] if by_map else kwargs)
            return Markup(text) if escapes else text

        return formatted


class _Measured(Formatter):
    """Charges for the fields of ``str.format`` before and after formatting."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        check_format_spec(format_spec)
        current().text(printed_chars(value))
        text = super().format_field(value, format_spec)
        current().text(len(text))
        return text


class _Formatter(_Measured, SandboxedFormatter):
    pass


class _EscapeFormatter(_Measured, SandboxedEscapeFormatter):
    pass


EnvironmentType = TypeVar("EnvironmentType", bound=SandboxEnvironment)


def build_environment(kind: type[EnvironmentType], code: type[CountingCode] = CountingCode) -> EnvironmentType:
    """Return an environment of class ``kind`` with transformers' extensions, whose templates ``code`` compiles."""
    env = kind(
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_walked,
        extensions=[GenerationBlock, loopcontrols],
        optimized=False,
    )
    env.code_generator_class = code
    env.filters.update({**guarded_filters(), "tojson": guarded("tojson", _tojson)})
    env.tests.update(guarded_tests())
    env.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
        "namespace": Namespace,
        "lipsum": lipsum,
    }
    return env


@cache
def _environment() -> SandboxEnvironment:
    return build_environment(SandboxEnvironment)


def compile_template(
    source: str,
    limits: RenderLimits,
    environment: SandboxEnvironment | None = None,
    change: Callable[[nodes.Template], nodes.Template] | None = None,
) -> jinja2.Template:
    """Return ``source`` compiled for ``environment``, after ``change`` has transformed its syntax tree.

    Raises ``TemplateError`` with the line of a syntax error, ``TemplateLimit`` if it is too large or too deeply nested.
    """
    if len(source.encode("utf-8", "surrogatepass")) > limits.source_bytes:
        raise TemplateLimit(f"is larger than {limits.source_bytes} bytes")
    try:
        with Spending(Budget(limits)):
            env = environment or _environment()
            tree = env.parse(source)
            if _has_more_nodes(tree, limits.nodes):
                raise TemplateLimit(f"has more than {limits.nodes} statements and expressions")
            return env.from_string(tree if change is None else change(tree))
    except TemplateLimit:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(error.message or "syntax error", line=error.lineno) from error
    except (RecursionError, MemoryError, LimitExceeded) as error:
        raise TemplateLimit("is nested too deeply, or too large, to be compiled") from error
    except Exception as error:
        raise TemplateError(f"does not compile ({type(error).__name__}: {error})") from error


def _has_more_nodes(tree: nodes.Node, limit: int) -> bool:
    stack, count = [tree], 0
    while stack and count <= limit:
        stack.extend(stack.pop().iter_child_nodes())
        count += 1
    return count > limit


def render_compiled(template: jinja2.Template, values: Mapping[str, Any], limits: RenderLimits) -> str:
    """Return the prompt that ``template`` renders with ``values``. Raises as ``ChatTemplate.render`` says."""
    context = template.new_context({**template.environment.globals, **values}, shared=True)
    try:
        with Spending(Budget(limits, values)):
            pieces: list[str] = []
            size = 0
            for piece in template.root_render_func(context):
                size += len(piece)
                if size > limits.text_chars:
                    raise LimitExceeded(f"renders more than {limits.text_chars} characters")
                pieces.append(piece)
            return "".join(pieces)
    except _Raised as error:
        raise TemplateRefused(str(error), line=_line_of(error, template)) from None
    except LimitExceeded as error:
        raise TemplateLimit(str(error), line=_line_of(error, template)) from None
    except RecursionError as error:
        raise TemplateLimit("calls itself without end", line=_line_of(error, template)) from None
    except MemoryError as error:
        raise TemplateLimit("needs more memory than there is", line=_line_of(error, template)) from None
    except jinja2.UndefinedError as error:
        raise TemplateError(error.message or "a value is missing", line=_line_of(error, template)) from error
    except SecurityError as error:
        raise TemplateError(f"does what the sandbox forbids: {error}", line=_line_of(error, template)) from error
    except Exception as error:
        raise TemplateError(f"{type(error).__name__}: {error}", line=_line_of(error, template)) from error
    finally:
        context.vars.clear()  # its macros refer to it, and only the garbage collector would free them


def _line_of(error: BaseException, template: jinja2.Template) -> int | None:
    """Return the line of the template in which ``error`` was raised (of the innermost macro)."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == TEMPLATE_FILE:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line
