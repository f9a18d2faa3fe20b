"""The workflow ``calculator``: a question, a tool for arithmetic, and a reward for the right number."""

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar, Final

from trinity_bus import Conversation, Task, ToolError, ToolWorkflow, register
from trinity_bus.rollout.scores import numeric
from trinity_bus.rollout.workflows import Answered

MAX_CHARS: Final = 200
OPERATORS: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
right_number = numeric(relative=1e-6)


async def calculate(expression: str) -> str:
    """Work out numbers with + - * / and parentheses, such as (48 + 24) / 2."""
    if len(expression) > MAX_CHARS:
        raise ToolError(f"at most {MAX_CHARS} characters")
    try:
        value = worked_out(ast.parse(expression.replace(",", ""), mode="eval").body)
        return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ToolError(f"{expression!r} cannot be worked out: {error}") from error


def worked_out(node: ast.expr) -> Fraction:
    """Return the value of an expression of numbers; nothing else in it is looked at.

    Raises:
        ValueError: There is something else in it.
        ZeroDivisionError: It divides by zero.
    """
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return Fraction(str(value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -worked_out(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](worked_out(left), worked_out(right))
    raise ValueError("only numbers, + - * / and parentheses")


@register("calculator")
class Calculator(ToolWorkflow):
    """Rewards 1 for the right final number, within eight turns."""

    tools: ClassVar = [calculate]
    max_turns: ClassVar[int] = 8

    async def reward(self, task: Task, conversation: Conversation) -> float:
        """See ``ToolWorkflow.reward``."""
        return await right_number(Answered(conversation.answer, task.answer or ""))
