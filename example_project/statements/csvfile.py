"""Reading a statement: CSV with the columns date, text and amount."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from io import StringIO

HEADER = ["date", "text", "amount"]
_LARGEST = Decimal(10) ** 10


class BadStatement(ValueError):
    """A file that cannot be booked. The message says which line is wrong, and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One transaction as the file gives it."""

    booked_on: date
    text: str
    amount: Decimal


def read_statement(content: str) -> list[Line]:
    """Return the transactions of a file, all or none: `BadStatement` for the first line that is wrong."""
    rows = csv.reader(StringIO(content), strict=True)
    try:
        if next(rows, None) != HEADER:
            raise BadStatement(f"line 1: the columns must be {','.join(HEADER)}")
        lines = list(_lines(rows))
    except csv.Error as error:
        raise BadStatement(f"line {rows.line_num}: {error}") from error
    if not lines:
        raise BadStatement("the file has no transactions")
    return lines


def _lines(rows: Iterator[list[str]]) -> Iterator[Line]:
    for row in rows:
        if row:
            try:
                yield _line(row)
            except ValueError as error:
                raise BadStatement(f"line {rows.line_num}: {error}") from error


def _line(row: list[str]) -> Line:
    if len(row) != len(HEADER):
        raise ValueError(f"{len(row)} columns instead of {len(HEADER)}")
    booked_on, text, amount = (cell.strip() for cell in row)
    if not 1 <= len(text) <= 200:
        raise ValueError("the text must have 1 to 200 characters")
    return Line(date.fromisoformat(booked_on), text, _amount(amount))


def _amount(cell: str) -> Decimal:
    try:
        amount = Decimal(cell)
    except InvalidOperation:
        raise ValueError(f"{cell!r} is not an amount") from None
    if not amount.is_finite() or abs(amount) >= _LARGEST or amount != round(amount, 2):
        raise ValueError(f"{cell!r} is not an amount of money")
    return amount
