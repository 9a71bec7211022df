# SPDX-License-Identifier: BSD-3-Clause
"""What can be broken in a file of C++: candidates(text) lists the places. The text is as clang-format leaves it, which puts spaces
around binary operators and nowhere else. A place that this file takes for an expression and the compiler does not is dropped when
the mutants are compiled, so a tokenizer is enough."""

import re
from typing import NamedTuple

SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "+", "/": "*", "%": "*",
           "&&": "||", "||": "&&", "+=": "-=", "-=": "+=", "*=": "+="}
COMPARISONS = {"<", "<=", ">", ">=", "==", "!="}
PRECEDENCE = {"*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<=>": 7, "<": 6, "<=": 6, ">": 6, ">=": 6, "==": 5, "!=": 5,
              "&": 4, "^": 3, "|": 2, "&&": 1, "||": 0}
ASSIGNMENT = -1
OPERATOR = re.compile(r"(?<=[\w)\]}\">]) (<=>|<<=?|>>=?|[-+*/%&|^]=|[=!<>]=|&&|\|\||[-+*/%<>&|^=])(?=[ \n])")
UNIT = re.compile(r"//[^\n]*|/\*.*?\*/|R\"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)\"|\"(?:\\.|[^\"\\\n])*\"|"
                  r"(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*", re.S | re.M)
INTEGER = re.compile(r"(?<![\w.'])\d[\d']*(?![\w.'])")
REAL = re.compile(r"(?<![\w.'])\d[\d']*\.\d*(?:e[-+]?\d+)?(?![\w.])|(?<![\w.'])\d+e[-+]?\d+(?![\w.])")
NO_BODY = re.compile(r"\s*(?:template\s*<.*>\s*)?(?:inline\s+|typedef\s+|static\s+|const\s+)*(?:namespace|class|struct|union|enum|extern)\b", re.S)
BODY_END = re.compile(r"(?:\)|\b(?:const|noexcept|override|final|mutable|else|do|try)|[&}]|->[^(){};]*)\s*$")
# Text for people, what is checked while compiling, and what has no effect.
TEXT = re.compile(r"\b(?:throw_error\s*<[^()]*>|throw\s+[\w:]+|log|refuse\w*|fmt::(?:format|print)|static_assert|assert|LOCKSTEP_\w+|TORCH_\w+|decltype|"
                  r"sizeof|noexcept|alignas|if constexpr)\s*[({]")
COMPILED = re.compile(r"\b(?:constexpr|constinit|using|typedef|static_assert|template|requires|enum|case)\b[^;{}]*[;{:]")
KEYWORD = re.compile(r"(?:return|throw|delete|using|typedef|co_\w+|goto|break|continue|case|default|static_assert|new|if|for|while|do|"
                     r"switch|else|try|public|private|protected)\b")
WITHOUT_EFFECT = re.compile(r"(?:log\w*|throw_error|assert|LOCKSTEP_\w+|TORCH_\w+|static_cast<void>|std::(?:abort|terminate)|::pthread_setname_np)[<(]|.*[.>](?:reserve|shrink_to_fit)\(",
                            re.S)
OPENING, CLOSING = "([{", ")]}"


class Candidate(NamedTuple):
    kind: str
    line: int  # from 1
    start: int  # what is replaced
    end: int
    before: str
    after: str
    code: str  # the replacement, which calls lockstep_mutant({number})


def masked(text):
    """The text with every comment and preprocessor line as spaces, every string and character as quotation marks. Its length and
    lines stay."""

    def hide(found):
        mark = '"' if found[0][0] in "R\"'" else " "
        return re.sub(r"[^\n]", mark, found[0])

    return UNIT.sub(hide, text)


class Code:
    """The brackets, blocks and statements of a masked text."""

    def __init__(self, text):
        self.text = text
        self.partner = {}
        self.heads = {}  # of a "{": what stands before it
        self.in_body = bytearray(len(text))
        self._read()
        self.hidden = bytearray(len(text))
        for found in TEXT.finditer(text):
            self._hide(found.start(), self.partner.get(found.end() - 1, found.end()))
        for found in COMPILED.finditer(text):
            self._hide(found.start(), found.end())

    def _hide(self, start, end):
        self.hidden[start:end] = b"\1" * (end - start)

    def _read(self):
        opened, since, body = [], 0, False
        for i, letter in enumerate(self.text):
            self.in_body[i] = body
            if letter in OPENING:
                opened.append((i, body, since))
                if letter == "{":
                    head = self.text[since:i]
                    self.heads[i] = head
                    is_block = bool(BODY_END.search(head)) and "(" in head or not head.strip() or re.search(r"\b(?:else|do|try)\s*$", head)
                    if NO_BODY.match(head) and not re.search(r"\)\s*(?:const\s*)?$", head):
                        body, since = False, i + 1
                    elif body or is_block:
                        body, since = True, i + 1
            elif letter in CLOSING and opened:
                start, body, before = opened.pop()
                self.partner[start], self.partner[i] = i, start
                ends_block = letter == "}" and since == start + 1 or letter == "}" and before != since
                since = i + 1 if ends_block and not self._is_initializer(start) else before
            elif letter == ";" and not (opened and self.text[opened[-1][0]] in "(["):
                since = i + 1

    def _is_initializer(self, brace):
        """`member_{1}` and `Type{1}`, which are no blocks."""
        head = self.heads[brace]
        return bool(re.search(r"[\w>=,]\s*$", head)) and not BODY_END.search(head) and not NO_BODY.match(head)

    def usable(self, start, end):
        return self.in_body[start] and not any(self.hidden[start:end])

    def outer(self, start, end):
        """The text from start to end, blank inside of brackets."""
        text, i = [], start
        while i < end:
            step = self.partner.get(i, i) - i + 1 if self.text[i] in OPENING else 1
            text.append(self.text[i] if step == 1 else " " * step)
            i += step
        return "".join(text)

    def left_end(self, at, precedence):
        """Where the left operand of a binary operator at `at` begins."""
        i = at - 1
        while i >= 0:
            letter = self.text[i]
            if letter in CLOSING and not self._ends_statement(i):
                i = self.partner.get(i, i) - 1
                continue
            if letter in CLOSING or letter in OPENING or letter in ";,?" or letter == ":" and self._is_single_colon(i):
                break
            operator = OPERATOR.match(self.text, i) if letter == " " else None
            if operator and PRECEDENCE.get(operator[1], ASSIGNMENT) < precedence:
                i = operator.end() - 1
                break
            word = re.search(r"\b(?:return|throw|else|case|co_return|co_yield|do)$", self.text[max(0, i - 10) : i + 1]) if letter.isalpha() else None
            if word and not (self.text[i + 1].isalnum() or self.text[i + 1] == "_"):
                break
            i -= 1
        start = i + 1
        return start + len(self.text[start:at]) - len(self.text[start:at].lstrip())

    def right_end(self, at, precedence):
        i = at
        while i < len(self.text):
            letter = self.text[i]
            if letter in OPENING:
                i = self.partner.get(i, len(self.text) - 1) + 1
                continue
            if letter in CLOSING or letter in ";,?" or letter == ":" and self._is_single_colon(i):
                break
            operator = OPERATOR.match(self.text, i) if letter == " " else None
            if operator and PRECEDENCE.get(operator[1], ASSIGNMENT) <= precedence:
                break
            i += 1
        return at + len(self.text[at:i].rstrip())

    def _ends_statement(self, closing):
        """Whether a block ends there, or what controls a statement."""
        opening = self.partner.get(closing, closing)
        if self.text[closing] == "}":
            head = self.heads.get(opening, "")
            return not self._is_initializer(opening) and not re.search(r"\][^\[\]]*$", head)  # lambdas are operands
        return self.text[closing] == ")" and self._control(opening) is not None

    def _control(self, opening):
        """The keyword of `if (...)`, `for (...)` and others; None: a call or an operand."""
        found = re.search(r"\b(if|for|while|switch|if constexpr) $", self.text[max(0, opening - 16) : opening])
        return found[1] if found else None

    def _is_single_colon(self, i):
        return self.text[i - 1 : i] != ":" and self.text[i + 1 : i + 2] != ":"

    def statements(self):
        """(start, end, what the statement depends on: "if", "other" or "") of every statement that ends with a semicolon."""
        for found in re.finditer(r"[;{})]|\belse\b|\bdo\b", self.text):
            after, last = found.end(), found.end() - 1
            if not self.in_body[min(after, len(self.text) - 1)] or self.text[last] == ";" and self._in_parentheses(last):
                continue
            depends = ""
            if found[0] == ")":
                control = self._control(self.partner.get(last, 0))
                if not control:
                    continue
                depends = "if" if control == "if" else "other"
            elif found[0] in ("else", "do"):
                depends = "other"
            start = after + len(self.text[after:]) - len(self.text[after:].lstrip())
            end = self._statement_end(start)
            if end:
                yield start, end, depends

    def _in_parentheses(self, i):
        while i >= 0:
            if self.text[i] in CLOSING:
                i = self.partner.get(i, i) - 1
            elif self.text[i] in OPENING:
                return self.text[i] != "{"
            else:
                i -= 1
        return False

    def _statement_end(self, start):
        i = start
        while i < len(self.text) and self.text[i] not in CLOSING:
            if self.text[i] == ";":
                return i + 1
            i = self.partner.get(i, len(self.text)) + 1 if self.text[i] in OPENING else i + 1
        return None


def is_call(statement):
    """`shape.f(x)`, `f<T>(x)->g()`, but no declaration such as `T f(x)`."""
    if not re.match(r"[A-Za-z_(*:]", statement) or KEYWORD.match(statement) or WITHOUT_EFFECT.match(statement) or not statement.endswith(")"):
        return False
    flat, before = statement, None
    while flat != before:
        before = flat
        flat = re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|<[^<>;]*>", "", flat)
    flat = re.sub(r"\s*(\.|->)\s*", r"\1", flat.strip())
    return bool(re.fullmatch(r"[\w:]+(?:(?:\.|->)~?\w+)*|(?:\.|->)\w+(?:(?:\.|->)\w+)*", flat))


def operators(text, code):
    for found in OPERATOR.finditer(code.text):
        operator = found[1]
        if operator not in SWAPPED or not code.usable(found.start(1), found.end(1)):
            continue
        precedence = PRECEDENCE.get(operator, ASSIGNMENT)
        start, end = code.left_end(found.start(), precedence), code.right_end(found.end(), precedence)
        left, right = text[start : found.start()], text[found.end() : end].lstrip()
        # Of strings, "+" is no arithmetic.
        if not left or not right or operator in "+-" and '"' in (code.text[found.start() - 1], code.text[end - 1], code.text[end - len(right)]):
            continue
        other = SWAPPED[operator]
        kind = "comparison" if operator in COMPARISONS else "logical" if operator in ("&&", "||") else "arithmetic"
        code_of = lambda op: f"({left} {op} {right})"  # noqa: E731
        yield kind, start, end, f"{left} {operator} {right}", f"{left} {other} {right}", f"(::lockstep_mutant(@) ? {code_of(other)} : {code_of(operator)})"


def constants(text, code):
    for found in re.finditer(r"\b(?:true|false)\b", code.text):
        if code.usable(*found.span()):
            other = "false" if found[0] == "true" else "true"
            yield "boolean", *found.span(), found[0], other, f"(::lockstep_mutant(@) ? {other} : {found[0]})"
    for found in [*INTEGER.finditer(code.text), *REAL.finditer(code.text)]:
        start, end = found.span()
        if not code.usable(start, end) or code.text[start - 1] == "<" or code.text[end] == ">":
            continue
        number = found[0]
        other = f"{number} + 1"
        yield "constant", start, end, number, other, f"(::lockstep_mutant(@) ? {other} : {number})"


def conditions(text, code):
    for found in re.finditer(r"\bif \(", code.text):
        opening = found.end() - 1
        start, end = opening + 1, code.partner.get(opening, opening)
        start += code.outer(start, end).rfind(";") + 1  # what follows `if (const auto x = f(); ...)`
        start += code.text[start:end].startswith(" ")
        if start >= end or not code.usable(start, end) or " = " in code.outer(start, end):
            continue
        condition = text[start:end]
        yield "condition", start, end, condition, f"!({condition})", f"::lockstep_mutant(@) != static_cast<bool>({condition})"
    for found in re.finditer(r"(?<=\S)\s\? ", code.text):
        start, end = code.left_end(found.start(), ASSIGNMENT + 0.5), found.start()
        condition = text[start:end]
        if condition and code.usable(start, end):
            yield "condition", start, end, condition, f"!({condition})", f"(::lockstep_mutant(@) != static_cast<bool>({condition}))"


def removals(text, code):
    for start, end, depends in code.statements():
        if not code.in_body[start] or code.hidden[start]:
            continue
        statement = code.text[start : end - 1].rstrip()
        is_early = re.match(r"(?:return|continue)\b", statement) and (depends == "if" or not depends and ends_if_block(code, end))
        is_early = is_early and not re.match(r"\s*else\b", code.text[end:])
        if is_early or is_call(statement):
            kind = "removed return" if is_early else "removed call"
            yield kind, start, end, text[start:end], "", f"{{ if (!::lockstep_mutant(@)) {text[start:end]} }}"


def ends_if_block(code, end):
    closing = re.match(r"\s*\}", code.text[end:])
    if not closing:
        return False
    brace = end + closing.end() - 1
    head = code.heads.get(code.partner.get(brace), "")
    return bool(re.match(r"\s*if \(", head)) and not re.match(r"\s*else\b", code.text[brace + 1 :])


def candidates(text):
    """Every Candidate of a file, in the order of its lines."""
    code = Code(masked(text))
    found = []
    for finder in (operators, constants, conditions, removals):
        for kind, start, end, before, after, replacement in finder(text, code):
            found.append(Candidate(kind, text.count("\n", 0, start) + 1, start, end, before, after, replacement))
    return sorted(found, key=lambda each: (each.start, each.end, each.kind))
