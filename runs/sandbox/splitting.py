"""Turn a published check into separate cases, where that provably changes no verdict.

A check such as HumanEval's ``check(candidate)`` compares in the process that
runs the candidate. It can be split into inputs and expected values if every
use of the candidate is a call on one side of a plain comparison::

    assert candidate(ARGS) == E        assert abs(candidate(ARGS) - E) < EPS
    assert candidate(ARGS) is True     assert candidate(ARGS)     assert not candidate(ARGS)

also as ``tuple(candidate(ARGS)) == E`` with tuple, list, set or sorted, and if
neither ARGS nor E depends on the candidate: not by name, nor by a name that only
the program defines. Then the check is rewritten so that each such assert reports
ARGS and E instead, and running it gives the cases. E stands as the published
check computes it; nothing is taken from the reference's results.

One dependence can't be read off the text: a candidate may change a list it is
given, and the check may use that list again. So the rewritten check is run a
second time with every argument spoilt after its use, and both runs must report
the same cases.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import TypeVar

VIEWS = ("tuple", "list", "set", "sorted")
RECORDER = "__case__"
# With these a name could be reached without being written.
_DYNAMIC = frozenset(
    {
        *("eval", "exec", "compile", "open", "input", "__import__"),
        *("globals", "locals", "vars", "getattr", "setattr", "delattr"),
    }
)
_NO_ARGUMENTS = ast.arguments(
    posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[], vararg=None, kwarg=None
)
_Node = TypeVar("_Node", bound=ast.AST)


class NotSplittable(Exception):
    """The check can't be split; the text says why."""


def instrument(test: str, *, entry: str, prelude: str) -> str:
    """Return ``test`` rewritten to report its cases to ``__case__``.

    Args:
        test: defines ``check(candidate)``, or is assert statements that call ``entry``.
        entry: name of the function under test.
        prelude: source that runs before every program; its names are the task's own.

    Raises:
        NotSplittable: equality could not be proved, or ``test`` is not valid Python.
    """
    try:
        tree, given = ast.parse(test), ast.parse(prelude)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotSplittable(f"the check can't be read: {error}") from error
    check = _check_function(tree)
    candidate = check.args.args[0].arg if check is not None else entry
    rewriter = _Rewriter(tree, given, tainted={candidate, entry}, candidate=candidate)
    rewriter.require_known_names()
    if check is None:
        tree.body = rewriter.block(tree.body)
    else:
        outside = [node for node in tree.body if node is not check]
        outside = [node for node in outside if not _is_call_of_check(node, entry)]
        rewriter.require_untainted(outside)
        check.body = rewriter.block(check.body)
        tree.body = [*outside, check, ast.parse(f"{check.name}(None)").body[0]]
    if rewriter.cases == 0:
        raise NotSplittable("the check calls nothing that could be compared")
    return ast.unparse(ast.fix_missing_locations(tree))


def _check_function(tree: ast.Module) -> ast.FunctionDef | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            arguments = node.args
            if len(arguments.args) != 1 or arguments.vararg or arguments.kwarg:
                raise NotSplittable("check takes something else than the candidate alone")
            if node.decorator_list or arguments.kwonlyargs or arguments.posonlyargs:
                raise NotSplittable("check is decorated or takes keyword arguments")
            return node
    return None


def _is_call_of_check(node: ast.stmt, entry: str) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node) == f"check({entry})"


def _all(nodes: ast.AST | Iterable[ast.AST], kind: type[_Node]) -> Iterator[_Node]:
    for node in [nodes] if isinstance(nodes, ast.AST) else nodes:
        for found in ast.walk(node):
            if isinstance(found, kind):
                yield found


class _Rewriter:
    """Rewrites the statements of one check and refuses what it can't prove."""

    def __init__(
        self, tree: ast.Module, given: ast.Module, *, tainted: set[str], candidate: str
    ) -> None:
        self._tree = tree
        self._tainted = tainted
        self._candidate = candidate
        self._bound = set(_bound_names(tree)) | set(_bound_names(given))
        self.cases = 0

    def require_known_names(self) -> None:
        """Refuse a check that reads a name which only the program under test can define."""
        known = self._bound | set(dir(builtins)) | self._tainted
        for name in _all(self._tree, ast.Name):
            if isinstance(name.ctx, ast.Load) and name.id not in known:
                raise NotSplittable(f"the check uses {name.id}, which the task doesn't define")
            if name.id in _DYNAMIC:
                raise NotSplittable(f"the check uses {name.id}")
        for node in _all(self._tree, ast.Name):
            if isinstance(node.ctx, ast.Store | ast.Del) and node.id in self._tainted:
                raise NotSplittable(f"the check assigns to {node.id}")

    def require_untainted(self, nodes: ast.AST | Iterable[ast.AST]) -> None:
        """Refuse nodes that mention the function under test."""
        for name in _all(nodes, ast.Name):
            if name.id in self._tainted:
                raise NotSplittable("a result is used otherwise than in a plain comparison")

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of ``body`` with their asserts rewritten."""
        return [self._statement(node) for node in body]

    def _statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, ast.Assert):
            return self._assert(node)
        if isinstance(node, ast.For | ast.If):
            head = [node.target, node.iter] if isinstance(node, ast.For) else [node.test]
            self.require_untainted(head)
            node.body = self.block(node.body)
            node.orelse = self.block(node.orelse)
            return node
        self.require_untainted(node)
        return node

    def _assert(self, node: ast.Assert) -> ast.stmt:
        names = {name.id for name in _all(node.test, ast.Name)}
        if not names & self._tainted:
            return node  # such as the customary `assert True`
        call, expected, view, tolerance, comparator = self._comparison(node.test)
        self.require_untainted([*call.args, expected])
        if call.keywords or any(isinstance(part, ast.Starred) for part in call.args):
            raise NotSplittable("the candidate is called with keyword or starred arguments")
        self.cases += 1
        report = ast.Call(
            func=ast.Name(id=RECORDER, ctx=ast.Load()),
            args=[
                ast.Tuple(elts=call.args, ctx=ast.Load()),
                # Evaluated after the arguments are spoilt, as it is after the call.
                ast.Lambda(args=_NO_ARGUMENTS, body=expected),
                ast.Constant(view),
                ast.Constant(tolerance),
                ast.Constant(comparator),
            ],
            keywords=[],
        )
        return ast.copy_location(ast.Expr(report), node)

    def _comparison(self, test: ast.expr) -> tuple[ast.Call, ast.expr, str, float | None, str]:
        """Return call, expected value, view, tolerance and comparator of one assert."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._call(test.operand), ast.Constant(False), "bool", None, "python_eq"
        if isinstance(test, ast.Call) and self._is_candidate(test):
            return test, ast.Constant(True), "bool", None, "python_eq"
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            raise NotSplittable("an assert is no plain comparison of one result")
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(operator, ast.Lt):
            return self._tolerance(left, right)
        if isinstance(operator, ast.Is):
            if isinstance(right, ast.Constant) and right.value in (True, False, None):
                return self._call(left), right, "", None, "exact"
            raise NotSplittable("an assert compares identity")
        if not isinstance(operator, ast.Eq):
            raise NotSplittable("an assert is no equality")
        for side, other in ((left, right), (right, left)):
            view, call = self._viewed(side)
            if call is not None:
                return call, other, view, None, "python_eq"
        raise NotSplittable("an assert is no plain comparison of one result")

    def _tolerance(
        self, left: ast.expr, right: ast.expr
    ) -> tuple[ast.Call, ast.expr, str, float | None, str]:
        """Read ``abs(candidate(...) - E) < EPS``."""
        difference = left.args[0] if isinstance(left, ast.Call) and len(left.args) == 1 else None
        if (
            isinstance(left, ast.Call)
            and self._is_builtin(left.func, "abs")
            and isinstance(difference, ast.BinOp)
            and isinstance(difference.op, ast.Sub)
            and isinstance(right, ast.Constant)
            and isinstance(right.value, int | float)
            and right.value > 0
        ):
            for side, other in (
                (difference.left, difference.right),
                (difference.right, difference.left),
            ):
                if isinstance(side, ast.Call) and self._is_candidate(side):
                    return side, other, "", float(right.value), "python_eq"
        raise NotSplittable("an assert compares sizes")

    def _viewed(self, side: ast.expr) -> tuple[str, ast.Call | None]:
        if not isinstance(side, ast.Call):
            return "", None
        if self._is_candidate(side):
            return "", side
        for view in VIEWS:
            if self._is_builtin(side.func, view) and len(side.args) == 1 and not side.keywords:
                inner = side.args[0]
                if isinstance(inner, ast.Call) and self._is_candidate(inner):
                    return view, inner
        return "", None

    def _call(self, node: ast.expr) -> ast.Call:
        if isinstance(node, ast.Call) and self._is_candidate(node):
            return node
        raise NotSplittable("an assert is no plain comparison of one result")

    def _is_candidate(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Name) and call.func.id == self._candidate

    def _is_builtin(self, function: ast.expr, name: str) -> bool:
        named = isinstance(function, ast.Name) and function.id == name
        return named and name not in self._bound


def _bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
