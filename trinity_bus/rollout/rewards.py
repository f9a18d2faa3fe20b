r"""Reward functions: text in, a number between 0 and 1 out. Pure, and safe on whatever a model may write.

Answers are found behind reasoning (``</think>``), in the order in which people mark them, within the last ``<answer>``
if there is one: the last ``\boxed{...}``, else what stands after the last ``####``, else the last number after the last
``=``, else the last number anywhere; of the sentence behind ``the answer is``, if it has one. A number that is part of
a formula is never found alone: it is the formula that was answered. Where words are wanted, it is the sentence, or the
last line.

Given and wanted answers are normalized by the same function, :func:`normalize`, and then compared by :func:`compare`.
What could earn a reward wrongly, and does not:

* a part of an answer: the digits of a formula, the letters of a word, one solution of two;
* another unit, another name (``y = 5`` for ``x = 5``), other brackets, another order within brackets;
* the question itself, such as ``48 + 24`` for ``72``: where a number is wanted nothing is worked out;
* what takes long: texts beyond ``MAX_ANSWER_CHARS`` are only compared as they are, and exponents are bounded.
"""

import re
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

# whether two answers, that given and that wanted, mean the same
type Equivalence = Callable[[str, str], Awaitable[bool]]

# Longer ones are compared as text: nobody means them, and exact arithmetic on them would cost time
MAX_NUMBER_CHARS = 64
MAX_EXPONENT = 400  # of ten; likewise
MAX_ANSWER_CHARS = 2000  # longer ones are not normalized


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_END = "\n"  # Stands for the end of a sequence; no word that ``split`` gives can be equal to it

_BOXED: Final = re.compile(r"\\f?boxed\s*\{")
_TAGGED: Final = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
# The sentence in which an answer is said, without what is remarked of it.
_SAID: Final = re.compile(
    r"(?i:(?:^|\b(?:the|my|final|correct))[ \t#*_]*answer|答案)[ \t*_]*(?:is|[:=]|是|为)(?!\s*not\b)[ \t:*_]*"
    r"(\S.*?)(?=[.!?]\s+[A-Z]|\s\([^()\\]*[a-z]{3}|[,;]?\s+(?:because|since)\b|,\s*not\b|$)",
    re.MULTILINE,
)
_HEADING: Final = re.compile(r"[^0-9\\]*(?=[0-9])")
_ESCAPE_OR_BRACE: Final = re.compile(r"\\.|[{}]", re.DOTALL)
# What may stand between the boxes of one answer.
_BETWEEN_BOXES: Final = re.compile(
    r"(?:[\s$,;.*]|\\[\](),; \\]|\\q?quad\b|\\text\{[\s,]*(?:and|or)\s*\}|and|or|[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)

# Thousands, too, as they are grouped in India, and with points: 1,23,456 and 1.234.567.
_DIGITS: Final = (
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,2}(?:,\d\d)+,\d{3}|\d+)(?:\.\d*)?|\.\d+|(?P<pointed>\d{1,3}(?:\.\d{3}){2,})"
)
# What most answers are, and what no rule changes: looked at first, for a rule costs as much as a hundred of these.
_PLAIN: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
# Of a normalized text without blanks.
_NUMBER: Final = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<decimal>{_DIGITS})(?:\\overline\{{(?P<repeated>\d+)\}}|\((?P<cycle>\d+)\))?(?:/(?P<below>\d+))?"
    r"(?P<power>(?:\\times|\\cdot|\*|x)10\^(?:\{(?P<e1>[-+]?\d+)\}|\((?P<e2>[-+]?\d+)\)|(?P<e3>[-+]?\d+)))?"
    r"|\\frac\{(?P<over>[-+]?\d+(?:\.\d+)?)\}\{(?P<under>[-+]?\d+(?:\.\d+)?)\}"
    r"|10\^(?:\{(?P<e4>[-+]?\d+)\}|(?P<e5>[-+]?\d+)))"
)
_EMPHASIS: Final = re.compile(r"(?<![\w)\]}*])(\*{1,3}|__|`)(?=[^\s*])([^*`\n]{0,400}[^\s*`])\1(?![\w*])")
_CALCULATED: Final = re.compile(r"<<[^<>\n]{0,400}>>")
_FORMULA: Final = re.compile(
    r"\$\$([^$]{1,1000})\$\$|(?<![\\$])\$(?=[^\s$])([^$\n]{0,400}[^\s$\\])?\$(?![\d$])"
    r"|\\\(((?:[^\\]|\\[^()]){1,1000}?)\\\)|\\\[((?:[^\\]|\\[^\[\]]){1,1000}?)\\\]"
)
_WORD: Final = re.compile(r"\S+")
# Writing that has no blanks around numbers: of South and East Asia
_UNSPACED: Final = re.compile("[\u0900-\u1cff\u3005-\u9fff\uac00-\ud7ff]+")
_BULLET: Final = re.compile(r"[ \t]*[-*+][ \t]")
_OPERATORS: Final = _words(r"+ - * / ^ x \times \cdot \div \pm < > \le \ge \leq \geq \ne \neq \in")
_OPERAND: Final = re.compile(r"\S*\d[a-zA-Z]?[)\]}]*|[b-zB-HJ-Z]|\S*[\\^][\S]*|[(\[]\S+|\S+[)\]]")
_VARIABLE: Final = re.compile(r"(?:[b-zB-HJ-Z]|\\[a-zA-Z]+\S*)[.,;:!?]*")
_SAYS: Final = re.compile(r"(?:^(?:is|are|be|equals|to|was)|:|=)$", re.IGNORECASE)
# A number with what is no part of it: ``5-year``, ``5th``. Digits behind it would be a later number.
_SHORT: Final = re.compile(
    r"([-+]?\\?\$?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?)"
    r"(?:-[a-zA-Z]{2,}[^\s0-9]*|st|nd|rd|th|'s|\.[A-Za-z]{2,}[^0-9\n]*)"
)
_MATHEMATICS: Final = re.compile(r"[\\^_=<>()\[\]{}+*/|-]")  # what is in formulas, and not in words
_LISTED: Final = re.compile(r"[-+]?[\d./]+(?:(?:\s*,(?:\s*(?:and|or)\b)?|\s+(?:and|or)\b)\s+[-+]?[\d./]+)+[.!]?")
# A date, a score, a number to call: nothing to work out.
_JOINED_NUMBERS: Final = re.compile(r"\d+(?:-\d+)+|\d+(?:[/.:]\d+){2,}")

_SYMBOLS: Final = (
    "\u00d7=times \u03c0=pi \u221e=infty \u2264=le \u2265=ge \u2260=ne \u222a=cup \u2229=cap \u2208=in \u00b1=pm"
    " \u03b8=theta \u03b1=alpha \u03b2=beta \u2248=approx \u2205=emptyset"
)
# Of Arabic, Persian, the languages of India, Thai and Lao.
_ZEROS: Final = "\u0660\u06f0\u0966\u09e6\u0a66\u0ae6\u0b66\u0be6\u0c66\u0ce6\u0d66\u0e50\u0ed0"
_CHARACTERS: Final = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\u02d7\u2796", "-")
    | dict.fromkeys("\u00b7\u22c5\u2219", r"\cdot ")
    | dict.fromkeys("\u00f7\u2044\u2215", "/")
    | dict.fromkeys("\u00b0\u00ba", r"\text{degrees}")
    | dict.fromkeys("\u200b\ufeff", "")
    | {"\u2019": "'", "\u3001": ",", "\u3002": "."}
    | {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | {chr(ord(zero) + digit): str(digit) for zero in _ZEROS for digit in range(10)}
    | {symbol: f"\\{name} " for symbol, _, name in (one.partition("=") for one in _SYMBOLS.split())}
)
_ROOT: Final = re.compile("\u221a\\s*(?:(\\d+(?:\\.\\d+)?|[a-zA-Z])|\\(([^()]*)\\)|{([^{}]*)})")
_COMPARED: Final = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne "}
_INEQUALITY: Final = re.compile(r"([<>]|\\[lg]e(?![a-zA-Z]))")
_BOUND: Final = re.compile(r"(?:[-+\d./(){}^\s]|\\(?:frac|sqrt|pi|infty)(?![A-Za-z]))+")
# Behind a number, such as ``cm^2``: its power is not the last number.
_SQUARE_UNIT: Final = re.compile(r"(?<=\d)(\s\$?(?:[a-z]{1,3}/)?(?:[cdkm]?m|in|ft|yd|mi|s|h))\^\{?([23])\}?(?!\w)")
_CURRENCY: Final = re.compile("[\u00a3\u00a5\u20a0-\u20bf]")
_VULGAR: Final = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")
_SUPERSCRIPT: Final = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u207b]+")

_INSIDE: Final = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_FONTS: Final = "mathbf|boldsymbol|bm|pmb|mathit|mathsf|mathtt|underline|boxed|fbox|emph|bf"
_SIZES: Final = "displaystyle|textstyle|limits|nolimits|bigskip|tiny|small|normalsize|large|Large|LARGE|huge|Huge"
_TEXTS: Final = "text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mbox|hbox|operatorname"
_ORDINAL: Final = "(?:st|nd|rd|th)"
_ABOUT: Final = r"(?i:approximately|approx\.?|about|roughly|around)"
_WORKED: Final = r"(?:[-+*/^\d\s.,(){}]|\\(?:times|cdot|div|frac|sqrt|[%$])(?![A-Za-z]))"
_WORDS_BETWEEN: Final = r"\\text\{\s*(?:,\s*)?(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
_RULES: Final[Sequence[tuple[re.Pattern[str], str]]] = tuple(
    (re.compile(pattern, re.DOTALL), becomes)
    for pattern, becomes in (
        # Emphasis of Markdown, and the delimiters of formulas.
        (r"^\s*(\*{1,3}|_{1,3}|`+|[\"'])(?=\S)(.*\S)\1(?=[.,;:]?\s*$)", r"\2"),
        (r"^\s*(?:``|\u201c)(.*\S)(?:''|\u201d)(?=[.,;:]?\s*$)", r"\1"),
        (r"^\s*#+\s+", ""),
        (r"(?<!\\)\\[()\[\]]", " "),
        (r"(?<!\\)\$\$", " "),
        (r"^\s*\$([^$]*[^$\\])\$(?=[.,;:]?\s*$)", r"\1"),
        (r"(?<!\\)\$(?=[^\s$])([^$]{0,400}[^\s$\\])?\$(?!\d)", r" \1 "),
        (r"(?<!\\)\$(?=\s*[-+]?\s*[\d.])", r"\\$"),
        (r"(?<!\\)\$", " "),
        # Sizes and spaces.
        (r"\\(?:left|right|middle)\s*\.", " "),
        (rf"\\(?:left|right|middle|[bB]igg?[lrm]?|{_SIZES})(?![A-Za-z])", ""),
        (r"\\(?:text)?color\s*\{[^{}]*\}", ""),
        (r",\\!|\\!", ""),
        (r"(?<=\d)\\?'(?=\d{3}(?!\d))", ","),
        (r"(?<=\d)(?:\{,\}|,?\\[,;:]|~)\s*(?=\d{3}(?!\d))", "\N{INVISIBLE SEPARATOR}"),
        (r"\{([,:])\}", r"\1"),
        (r"(?<!\\)\\[,;: \n]|~|\\q?quad(?![A-Za-z])|\\hspace\{[^{}]*\}|\\(?:thin|med|thick)?space(?![A-Za-z])", " "),
        # Fonts.
        (rf"(\\(?:{_TEXTS})\s*\{{[^{{}}]*)\^\s*\{{\s*(-?\d)\s*\}}\s*\}}", r"\1}^\2"),
        (rf"\\(?:{_FONTS})\s*\{{({_INSIDE})\}}", r"\1"),
        (r"\\(?:bf|rm|it)(?![A-Za-z])", " "),
        (rf"\\(?:{_TEXTS})\s*\{{\s*([ei])\s*\}}", r" \1"),
        (rf"\\(?:{_TEXTS})\s*\{{(\s*\(?[A-J]\)?[.:]?\s*)\}}(?=\s*$)", r" \1"),
        (rf"\\(?:{_TEXTS})\s*\{{([^{{}}A-Za-z]*)\}}", r"\1"),
        (rf"\\(?:{_TEXTS})\s*\{{\s*([^{{}}]*?)\s*\}}", r"\\text{\1}"),
        (r"^\s*\\text\{([^{}]*)\}\.?\s*$", r"\1"),
        (r"\\text\{([^{}]*[^{}\s])\s*[:=]\s*\}", r"\\text{\1} = "),
        (
            r"(?<=[\d}])(?:\s*[(\[]\s*\\text\{([^{}]*)\}|\s\((?!or |and |not )([A-Za-z ]{3,}))\s*[)\]]\s*$",
            r" \\text{\1\2}",
        ),
        (rf"(?<=\d)\s*\^?\s*(?:{_ORDINAL}|\{{\s*{_ORDINAL}\s*\}}|\{{?\\text\{{\s*{_ORDINAL}\s*\}}\}}?)\s*$", ""),
        # Names.
        (r"\\(?:[dtc]|nice|s)(frac|binom)(?![A-Za-z])", r"\\\1"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\(?:leq|leqslant)(?![A-Za-z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![A-Za-z])|>=", r"\\ge "),
        (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
        (r"\\(?:bar|dot)(?=\s*\{\d)", r"\\overline"),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])", r"\\text{degrees}"),
        (r"(?<!\\)%|(?<=[\d}\s])(?:\\text\{\s*percent\s*\}|percent(?![A-Za-z]))", r"\\%"),
        (rf"(?:\s*,)?\s*(?:{_WORDS_BETWEEN})\s*(?=\S)", ", "),
        (r"(?<=\d)\s*(?:\\text\{\s*([aApP])\.?\s?[mM]\.?\s*\}|([aApP])\.\s?[mM]\.?)(?![A-Za-z])", r" \1\2m"),
        # Numbers.
        (r"\\(frac|binom)\s*(\d)\s*(\d|\{)", r"\\\1{\2}\3"),
        (r"\\(frac|binom)\s*(\{[^{}]*\})\s*(\d)", r"\\\1\2{\3}"),
        (r"\\frac\s+\{", r"\\frac{"),
        (r"(\\frac\{[^{}]*\})\s+\{", r"\1{"),
        (r"\{\s*([^{}\\]+?)\s*\\over\s*([^{}\\]+?)\s*\}", r"\\frac{\1}{\2}"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d+)(?![\w.])", r"\1\\times 10^{\2}"),
        (r"(?<=\d)\s*(?:\bx|\*)\s*(?=10\s*\^)", r"\\times "),
        (r"(?<=[\w)}])\s*\*\*\s*(\d+|\w)", r"^{\1}"),
        # What was worked out before it, and what it is about.
        (rf"^((?:[A-Za-z](?:_\w)?\s*=)?)(?=[^=]*\d){_WORKED}+=\s*(?=(?:{_WORKED}|\\pi|\\text\{{[^{{}}]*\}})+$)", r"\1"),
        (r"(?:(?<=[\d}])(?<!_\d)|(?<=\d\\pi))\s*\\approx(?![A-Za-z])(?:[-\d.,\s]|\\[%$,]|\\text\{[^{}]*\})+$", ""),
        (rf"^\s*(?:\\approx(?![A-Za-z])|=|{_ABOUT}|\\text\{{\s*{_ABOUT}\s*\}})\s*(?=[-+]?\s*[\d.\\])", ""),
        (r"(^|[=(,\[{<>:])(\s*)([-+])\s+(?=[\d.\\a-zA-Z])", r"\1\2\3"),
        (r"^\s*\+(?=[\d.\\])", ""),
        (rf"^\s*\{{({_INSIDE})\}}\s*$", r"\1"),
        (r"^\s*\(([^(),;]*)\)\s*$", r"\1"),
        (r"(?<=\w)_\{(\w)\}", r"_\1"),
        (r"(?<!\\)[.,;:]+\s*$", ""),
        (r"\s+", " "),
    )
)
_THOUSANDS: Final = re.compile(
    r"(?<![\d.,\N{INVISIBLE SEPARATOR}])([1-9]\d{0,2})((?:[, \N{INVISIBLE SEPARATOR}]\d{3})+)(?![\d,])"
)
_MIXED: Final = re.compile(
    r"(?<![\w.^_}/\\])(\d{1,12})(?:\s*\\frac\{(\d{1,12})\}\{(\d{1,12})\}| (?:and )?(\d{1,12})/(\d{1,12})(?![\w/]))"
)

_SPELLED: Final = r"""
dollar=\$,usd euro=euros,eur pound=pounds,gbp rupee=rs,inr yen=yen cent=¢ degree=degs,deg
%=\%,percent,percentage,pct
mm=millimeter,millimetre cm=centimeter,centimetre dm=decimeter,decimetre m=meter,metre km=kilometer,kilometre
in=inch,inche ft=foot,feet yd=yard mi=mile g=gram kg=kilogram mg=milligram oz=ounce lb=lb,lbs ton=tonne
s=second,sec,secs min=minute,mins h=hour,hr,hrs l=liter,litre ml=milliliter,millilitre n=newton j=joule w=watt
v=volt a=ampere k=kelvin c=celsius f=fahrenheit hz=hertz pa=pascal mi/h=mph km/h=kmh,kph sq=square,sq. cu=cubic
/=per person=people man=men woman=women child=children
"""
# As they are written, in lower case and without the s of a plural: what they are compared as.
_UNIT_NAMES: Final = {
    spelled: unit for unit, _, names in (one.partition("=") for one in _SPELLED.split()) for spelled in names.split(",")
}
# Those shorter than four letters that need no \text to be one, and common words.
_UNITS: Final = _words("""
mm cm dm m km in ft yd mi g kg mg oz lb ton s min h ms ml l n j w v a k c f hz pa kw kpa mol ev kj rad sq cu
nm kwh gb mb tb kb gal pt qt mpa gpa atm kn mj kv mhz ghz ha bit old am pm
day week month year unit cup pen man men hat bag box car dog cat egg pie cow toy cent dollar
""")
_LETTER_UNITS: Final = "mgshlLNJWVAKCF"
# Words behind a number that make another answer of it.
_NO_UNITS: Final = _words("""
or and more less than not least most mod modulo if squared cubed factorial root base time plus minus over sin
cos tan cot sec csc log ln exp sqrt pi max min lim theta alpha beta fewer greater smaller digit other
""")
_SCALES: Final = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# Of any script but the Greek, whose letters are variables.
_LETTERS: Final = r"[^\W\d_\u0370-\u03ff]+"
_UNIT_PART: Final = rf"(?:\\text\{{[^{{}}]*\}}|\\%|\\\$|¢|{_LETTERS}\.?)(?:\s*\^\s*(?:\{{-?\d\}}|-?\d))?"
_WITH_UNIT: Final = re.compile(
    rf"(?P<core>.{{0,400}}?[\d}})!]|.{{0,400}}?\\pi)(?P<unit>(?:[\s/-]*(?:\\cdot(?![A-Za-z]))?\s*{_UNIT_PART}){{1,6}})",
    re.DOTALL,
)
_UNIT_TOKEN: Final = re.compile(rf"\\text\{{([^{{}}]*)\}}|(\\%|\\\$|¢)|({_LETTERS})\.?|\^\s*\{{?(-?\d)\}}?|(/)")
_MONEY: Final = re.compile(
    r"([-+]?)\s*(?:[A-Z]{1,2}(?=\\\$))?(\\\$|\\text\{(?:[a-z]+|[A-Z][a-z]{0,2}\.|[A-Z]{3})\}|(?:USD|EUR|GBP|INR|Rs\.?)(?![A-Za-z]))\s*([-+]?)\s*(?=[\d.\\])"
)
_OBJECT: Final = (
    r"(?:\\text\{[^{}=]*\}|\\(?:overline|vec|hat|widehat|overrightarrow)\s*\{?\w+\}?|\\?[A-Za-z]+(?:\s[A-Z]{1,4})?)"
)
# ``x``, ``x_1``, ``f(x)``, ``P(A)``, ``|AB|``, ``\angle ABC``, ``(x, y)``
_LABEL: Final = re.compile(
    rf"\s*(\|?{_OBJECT}\|?(?:_(?:\{{[^{{}}]*\}}|\w)|'|\(-?\w+(?:,\s*-?\w+)*\))?|\([a-z](?:,\s*[a-z])*\))"
    r"\s*(?:=|:|\\(?:in|approx)(?![A-Za-z]))(?!=)\s*([^=<>]+)$"
)
_TWO_VARIABLES: Final = re.compile(
    r"^[^,]*(?<![A-Za-z\\])([a-z])(?![A-Za-z])[^,]*(?<![A-Za-z\\])(?!\1)[a-z](?![A-Za-z])[^,]*$"
)
_CHOSEN: Final = re.compile(
    r"(?:(?i:answer|option|choice|choose|select)s?\b|答案|选(?:项|择)?)"
    r"(?:\s*(?:is|:|was|=|\bto be\b|\boption\b|\bchoice\b|the|correct|是|为)){0,4}[\s:]*"
    r"(?:[*_$`]|\\text\w*\{|\\math\w+\{|\\\()*"
    r"([(\[][A-Ja-j][)\]]|[A-J]{1,10}(?![a-zA-Z0-9_'])|[b-j](?=\W*\Z))(?!\s+is\b)"
    r"|(?<![\w'])(\([A-J]\)|[A-J])\s+is\s+(?:the\s+)?(?:(?:correct|right|best)\b|answer\b)"
)
_CHOICES: Final = re.compile(r"\(?[A-J]\)?(?:\s*[,;&]\s*\(?[A-J]\)?)+\.?|[A-J]{2,10}")
_CHOICE: Final = re.compile(
    r"\s*(?:option\s+|choice\s+|answer:?\s+)?(?:[(\[]([A-J])[)\]]|([A-J])\s*\)|([A-J])(?:\s*[.:](?=\s|$)|\s+-(?=\s+\S.))|([A-J])$)\s*(.*)",
    re.DOTALL | re.IGNORECASE,
)


class _Answer(NamedTuple):
    core: str
    unit: str
    name: str  # what it is said to be, ``x`` of ``x = 5``


def normalize(answer: str) -> str:
    r"""Return an answer without decoration: the same text for ``**\frac12**`` and ``\(\dfrac{1}{2}\)``.

    What it means is not changed, and normalizing again changes nothing.
    """
    if _PLAIN.fullmatch(answer):
        return answer
    return _normalized(answer) if len(answer) <= MAX_ANSWER_CHARS else answer.strip()


# The reference is that of all runs of a task.
@lru_cache(maxsize=1024)
def _normalized(answer: str) -> str:
    text = _ROOT.sub(r"\\sqrt{\1\2\3}", answer).translate(_CHARACTERS)
    text = _SUPERSCRIPT.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", text)
    text = _VULGAR.sub(_vulgar, text)
    text = unicodedata.normalize("NFKC", text).translate(_CHARACTERS)
    text = _CURRENCY.sub(lambda found: rf"\text{{{unicodedata.name(found[0]).split()[-2].lower()}}}", text)
    # Each pass undoes one layer; a text that goes on changing is nothing that anybody wrote.
    for _ in range(12):
        before = text
        for pattern, becomes in _RULES:
            text = pattern.sub(becomes, text)
        text = _THOUSANDS.sub(_joined, text).replace("\N{INVISIBLE SEPARATOR}", " ")
        text = _MIXED.sub(_improper, text).strip()
        if text == before:
            return text
    return answer.strip()


def _vulgar(found: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", found[0]).partition("\u2044")
    return rf"\frac{{{over}}}{{{under or 1}}}"


def _joined(found: re.Match[str]) -> str:
    # Within brackets a plain comma is that of a list: (1,100) is a point; but not in an argument, such as of \\frac.
    before, depth = found.string[: found.start()], 0
    for at in reversed(range(len(before) if "\N{INVISIBLE SEPARATOR}" not in found[2] else 0)):
        depth += (before[at] in ")]}") - (before[at] in "([{")
        if depth < 0:
            if before[at] == "{" and re.search(r"[A-Za-z}]$", before[:at]):
                break
            return found[0]
    return found[1] + re.sub(r"\D", "", found[2])


def _improper(found: re.Match[str]) -> str:
    whole, over, under = int(found[1]), int(found[2] or found[4]), int(found[3] or found[5])
    return rf"\frac{{{whole * under + over}}}{{{under}}}" if over < under else found[0]


def parse_number(text: str) -> Fraction | None:
    r"""Return the number that an answer is, exactly, without its unit; None when it is anything else.

    Integers, decimals, fractions, mixed numbers, ``1.2 \times 10^{-3}`` and ``1.2e-3``, thousands in any way.
    """
    return _number(_taken_apart(normalize(text)).core)


def _number(core: str) -> Fraction | None:
    plain = re.sub(r"(?<!,)\s", "", core)
    # A blank between digits is no way to write a number.
    if len(plain) > MAX_NUMBER_CHARS or re.search(r"\d\s+\d", core) or not (found := _NUMBER.fullmatch(plain)):
        return None
    exponent = int(found["e1"] or found["e2"] or found["e3"] or found["e4"] or found["e5"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    decimal = found["decimal"] and found["decimal"].replace("." if found["pointed"] else ",", "")
    over = Fraction(decimal or found["over"] or "1")
    if repeated := found["repeated"] or found["cycle"]:
        if "." not in decimal:
            return None
        places = len(decimal.partition(".")[2])
        over += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10**places)
    under = Fraction(found["below"] or found["under"] or "1")
    if under == 0:
        return None
    value = over / under * Fraction(10) ** exponent
    return -value if found["sign"] == "-" else value


def _taken_apart(text: str) -> _Answer:
    name = ""
    if named := _LABEL.fullmatch(text):
        name, text = re.sub(r"\s", "", named[1]), named[2].strip()
        said = name.startswith(r"\text") or name.lower() in {"answer", "result", "total", "solution"}
        name = "" if said else name
    sign, unit = "", ""
    if money := _MONEY.match(text):
        sign = "-" if "-" in money[1] + money[3] else ""
        unit = re.sub(r"\\text|[{}.]", "", money[2]).lower()
        unit = _UNIT_NAMES.get(unit, unit)
        text = sign + text[money.end() :]
    if (found := _WITH_UNIT.fullmatch(text)) and (read := _read_unit(found["unit"])):
        scale, behind = read
        core = found["core"].strip()
        if scale:
            if (value := _number(core)) is None:
                return _Answer(text, unit, name)
            value *= 10**scale
            core = f"{value.numerator}/{value.denominator}" if value.denominator > 1 else str(value.numerator)
        if unit and behind.startswith("/"):
            return _Answer(core, unit + behind, name)
        if not (unit and behind and unit != behind):
            return _Answer(core, unit or behind, name)
    return _Answer(text, unit, name)


def _read_unit(text: str) -> tuple[int, str] | None:
    # The power of ten that words behind a number stand for, and their unit; None when they are neither.
    scale, parts = 0, []
    # A letter that touches its number, or is subtracted or divided by, is a variable; so are most others.
    touching = bool(re.match(r"[A-Za-z]|\s*[-/]", text))
    for token in _UNIT_TOKEN.finditer(text):
        words, sign, word, power, slash = token.groups()
        if power or slash:
            parts.append(f"^{power}" if power else "/")
            continue
        for one in words.split() if words is not None else [sign or word]:
            low = one.lower().strip(".,")
            single = low[:-1] if low.endswith("s") and len(low) > 3 else low
            if low in _NO_UNITS and low not in _UNITS:
                return None
            if (
                words is None
                and word
                and single not in _UNITS
                and low not in _UNIT_NAMES
                and len(low) < 4
                and low.isascii()
            ):
                return None
            if words is None and word and len(low) < 2 and low.isascii() and (touching or word not in _LETTER_UNITS):
                return None
            touching = False
            if single in _SCALES and not parts:
                scale += _SCALES[single]
            else:
                parts.append(_UNIT_NAMES.get(low) or _UNIT_NAMES.get(single, single))
    unit = " ".join(parts).replace(" ^", "^").replace(" /", "/").replace("/ ", "/")
    return scale, re.sub(r"\b(sq|cu) (\S+)", lambda found: f"{found[2]}^{2 if found[1] == 'sq' else 3}", unit)


def _choice(text: str) -> tuple[str, str] | None:
    # The letters of a choice, and the text behind it; None when it is none.
    if several := _CHOICES.fullmatch(text):
        letters = re.findall("[A-J]", text)
        # A word has its letters in another order.
        return ("".join(sorted(letters)), "") if letters == sorted({*letters}) or not several[0].isalpha() else None
    found = _CHOICE.fullmatch(re.sub(r"\\text\{\s*(\(?[A-J]\)?[.:)]?)\s*\}", r"\1 ", text))
    if found is None:
        return None
    letter = found[1] or found[2] or found[3] or found[4]
    return letter.upper(), _squeezed(found[5])


def _squeezed(text: str) -> str:
    # Without blanks; words without regard to case.
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    plain = re.sub(r"(?<!\d)\s|\s(?!\d)", "", text)
    return plain if _MATHEMATICS.search(text) or len(plain) < 2 else plain.casefold()


def _elements(text: str) -> tuple[str, list[str]]:
    # The brackets of a list, ``{}`` of a set and of a list without any, and its elements.
    for opens, closes in ((r"\{", r"\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        if text.startswith(opens) and text.endswith(closes):
            inner = text[len(opens) : -len(closes)]
            parts = _split(inner)
            if parts is not None and (len(parts) > 1 or opens == r"\{"):
                return (opens + closes).replace("\\", ""), parts
    parts = _split(text) or [text]
    return "{}", [one for part in parts for one in _both_signs(part)]


def _several(text: str) -> str:
    # The values of a variable that has several, ``x = 2, 3``; all else as it is.
    named = _LABEL.fullmatch(text)
    return named[2].strip() if named and _elements(text)[0] == "{}" and len(_elements(named[2])[1]) > 1 else text


def _as_interval(text: str) -> str:
    r"""Return inequalities of a variable and numbers as an interval, or a union: ``x<2, x\ge 3``; all else as it is.

    What is still to be solved stays as it is, too: it would be the question.
    """
    intervals = []
    for part in _split(text) or [text]:
        found = [one.strip() for one in _INEQUALITY.split(part)]
        sides, signs = found[::2], found[1::2]
        at = next((at for at, side in enumerate(sides) if re.fullmatch("[a-zA-Z]", side)), None)
        bounds = [side for place, side in enumerate(sides) if place != at]
        if at is None or not all(map(_BOUND.fullmatch, bounds)) or (len(signs) > 1 and at != 1) or len(signs) > 2:
            return text
        low, high = r"(-\infty", r"\infty)"
        for place, (sign, bound) in enumerate(zip(signs, bounds, strict=True)):
            if (sign[-1] in "<l") == (place < at) if len(sign) == 1 else (sign == r"\le") == (place < at):
                low = ("[" if "e" in sign else "(") + bound
            else:
                high = bound + ("]" if "e" in sign else ")")
        intervals.append(f"{low}, {high}")
    return r" \cup ".join(intervals)


def _both_signs(text: str) -> list[str]:
    return [text.replace(r"\pm", sign) for sign in "+-"] if text.count(r"\pm") == 1 else [text]


def _split(text: str) -> list[str] | None:
    # At the commas outside of brackets; None when brackets are not balanced.
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"\\[a-zA-Z]+|\\.|[()\[\]{},;]", text):
        mark = found[0].removeprefix("\\")
        if mark in {"(", "[", "{", "}", "]", ")"}:
            depth += 1 if mark in "([{" else -1
            if depth < 0:
                return None
        elif found[0] in ",;" and depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()] if depth == 0 else None


def compare(given: str, wanted: str) -> bool | tuple[str, str]:
    """Return whether two answers are equal, or the two formulas of which that is to be found out."""
    given, wanted = normalize(given), normalize(wanted)
    # What is the same text is the same answer: most need no arithmetic.
    if _squeezed(given) == _squeezed(wanted):
        return True
    if (choice := _choice(wanted)) is not None:
        other = _choice(given) or ("", "")
        return choice[0] == other[0] and (not choice[1] or not other[1] or choice[1] == other[1])
    if bool(_INEQUALITY.search(given)) != bool(_INEQUALITY.search(wanted)):
        given, wanted = _as_interval(given), _as_interval(wanted)
    named_given, named_wanted = _LABEL.fullmatch(given), _LABEL.fullmatch(wanted)
    if len({_squeezed(named[1]) for named in (named_given, named_wanted) if named}) == 1:
        given, wanted = _several(given), _several(wanted)
        named_given, named_wanted = _LABEL.fullmatch(given), _LABEL.fullmatch(wanted)
    (kind, mine), (other_kind, theirs) = _elements(given), _elements(wanted)
    if len(mine) == len(theirs) == 1 or named_given or named_wanted:
        alike = len(mine) == len(theirs) == 1 and kind == other_kind and (given[:2] == r"\{") == (wanted[:2] == r"\{")
        return _compare_one(mine[0], theirs[0]) if alike else _compare_one(given, wanted)
    if kind == other_kind == "{}":
        # A list, or one number whose groups are not thousands.
        return _compare_one(given, wanted) is True or _compare_unordered(mine, theirs)
    if 1 in {len(mine), len(theirs)} and (_INEQUALITY.search(given + wanted) or r"\mathbb" in given + wanted):
        return given, wanted
    verdicts = [_compare_one(a, b) for a, b in zip(mine, theirs, strict=False)]
    alike = kind == other_kind and len(mine) == len(theirs) and False not in verdicts
    return alike and (all(one is True for one in verdicts) or (given, wanted))


def _compare_unordered(mine: list[str], theirs: list[str]) -> bool | tuple[str, str]:
    if max(len(mine), len(theirs)) > MAX_NUMBER_CHARS:
        return False
    left = list(theirs)
    unknown = []
    for one in mine:
        at = next((at for at, other in enumerate(left) if _compare_one(one, other) is True), None)
        if at is not None:
            del left[at]
        elif not any(_compare_one(one, other) is True for other in theirs):
            unknown.append(one)
    left = [one for one in left if not any(_compare_one(one, other) is True for other in mine)]
    if not unknown and not left:
        return True
    if len(unknown) != len(left) or all(_number(_taken_apart(one).core) is not None for one in left):
        return False
    return rf"\{{{', '.join(unknown)}\}}", rf"\{{{', '.join(left)}\}}"


def _compare_one(given: str, wanted: str) -> bool | tuple[str, str]:
    if _squeezed(given) == _squeezed(wanted):
        return True
    mine, theirs = _taken_apart(given), _taken_apart(wanted)
    if (mine.name and theirs.name and mine.name != theirs.name) or (
        mine.unit and theirs.unit and mine.unit != theirs.unit
    ):
        return False
    right = _number(theirs.core)
    if right is not None:
        value = _number(mine.core)
        # 50% is 50, as data sets have it, and a half.
        part = {mine.unit, theirs.unit} == {"", "%"}
        return value is not None and (
            value == right or (part and right == (value / 100 if mine.unit == "%" else value * 100))
        )
    if _squeezed(mine.core) == _squeezed(theirs.core):
        return True
    # Digits in a base are another number: 101_2 is not 101.
    if re.search(r"\d_", mine.core + theirs.core) or _JOINED_NUMBERS.fullmatch(theirs.core):
        return False
    # The equation of a curve has many forms, of which one names a coordinate.
    if "=" in mine.core + theirs.core and _TWO_VARIABLES.search(given) and _TWO_VARIABLES.search(wanted):
        mine, theirs = _Answer(given, "", ""), _Answer(wanted, "", "")
    # Where a number is wanted nothing is worked out: the question itself, 48 + 24, would be an answer to it.
    return (mine.core, theirs.core) if _MATHEMATICS.search(theirs.core) or re.search(r"\d", theirs.core) else False


def extract_answer(text: str) -> str | None:
    """Return the final answer in a response, as it was written; None when there is none."""
    if _PLAIN.fullmatch(text):
        return text
    text = _after_reasoning(text)
    tagged = _TAGGED.findall(text)
    text = tagged[-1] if tagged else text
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    _, marked, tail = text.rpartition("####")
    if not (marked or tagged):
        return _unmarked(text)
    tail = tail if marked else text
    # A sentence, or a heading of what is answered.
    if (before := _HEADING.match(tail)) and re.search("[A-Za-z]{2,}", before[0]):
        return _unmarked(tail)
    return tail.strip().splitlines()[0].strip() if tail.strip() else None


def _after_reasoning(text: str) -> str:
    answer = text.rpartition("</think>")[2]
    return answer if answer.strip() else text


def _is_marked(text: str) -> bool:
    return bool(_BOXED.search(text) or "####" in text or _TAGGED.search(text))


def _chosen(text: str) -> str | None:
    # As it marks answers, else behind words that say so, else at its end.
    text = _after_reasoning(text)
    if _is_marked(text):
        return extract_answer(text)
    text = _EMPHASIS.sub(r"\2", text.translate(_CHARACTERS))
    said = list(_CHOSEN.finditer(text))
    if said:
        letter, rest = said[-1][1] or said[-1][2], text[said[-1].end() :].partition("\n")[0].lstrip("*_$`}")
        others = re.match(r"\s*(?:,|/|&|or|and)[\s*(]*(?:or |and )?[A-J]\b", rest)
        ends = re.match(r"\s*(?:,|;|since\b|because\b|as\b)", rest)
        return letter if said[-1][2] or (ends and not others) else letter + rest
    last = text.strip().rpartition("\n")[2]
    if _choice(normalize(last)):
        return last
    letters = {*re.findall(r"\(([A-J])\)", last)}
    return letters.pop() if len(letters) == 1 else None


def _in_words(text: str) -> list[str]:
    # The sentence that says the answer, else the last line; and what stands before a reason.
    text = _after_reasoning(text)
    text = ((extract_answer(text) or "") if _is_marked(text) else text).strip()
    text = _EMPHASIS.sub(r"\2", text.translate(_CHARACTERS))
    said = [sentence[1] for sentence in _SAID.finditer(text)]
    answer = said[-1] if said else text.rpartition("\n")[2][:MAX_ANSWER_CHARS]
    return [answer, re.split(r"[,;]?\s+(?:because|since|as)\b|[.!]\s", answer, maxsplit=1)[0]]


def reference(answer: str) -> str:
    """Return the end of a worked reference, or the reference as it is."""
    return (extract_answer(answer) if _is_marked(answer) else None) or answer


async def math_reward(response: str, answer: str, is_equivalent: Equivalence) -> float:
    """Return 1.0 where the final answer equals the reference's, else 0.0; ``is_equivalent`` compares formulas."""
    wanted = reference(answer)
    plain = normalize(wanted)
    if _choice(plain):
        given = _chosen(response)
    elif re.search(r"\d", plain) or _MATHEMATICS.search(plain):
        given = extract_answer(response)
    else:
        return float(any(compare(one, wanted) is True for one in _in_words(response)))
    if given is None:
        return 0.0
    verdict = compare(given, wanted)
    if isinstance(verdict, tuple):
        verdict = await is_equivalent(*verdict)
    return 1.0 if verdict else 0.0


def sequence_reward(response: str, answer: str, *, ended: bool) -> float:
    """Return the share of words that stand where they should, the end of the answer counted as one of them.

    Words are split at blanks. The share is of the longer of the two sequences, so that neither filling up nor stopping
    early pays, and 1.0 is the answer exactly: no word missing, none too many, and ended by the model itself
    (``ended``), not cut by a limit. Neither text has special tokens.
    """
    given, wanted = [*response.split(), *([_END] if ended else [])], [*answer.split(), _END]
    hits = sum(a == b for a, b in zip(given, wanted, strict=False))
    return hits / max(len(given), len(wanted))


def _unmarked(text: str) -> str | None:
    # What the last sentence that says the answer has, else the whole text.
    text = _UNSPACED.sub(r" \g<0> ", _CALCULATED.sub("", text.translate(_CHARACTERS)))
    text = re.sub("[<>!]=", lambda found: _COMPARED[found[0]], _EMPHASIS.sub(r"\2", text))
    text = _SQUARE_UNIT.sub(lambda found: found[1] + "²³"[int(found[2]) - 2], text)
    said = [sentence[1] for sentence in _SAID.finditer(text)]
    if said and _last_digits(said[-1], 0) >= 0:
        text = said[-1]
        if _LISTED.fullmatch(text):
            return text
    return _last_number(text)


def _last_number(text: str) -> str | None:
    # The last one after the last ``=``, else the last one, with the formula that it is part of.
    start = text.rfind("=") + 1
    last = _last_digits(text, start)
    if last < 0 and start:
        start, last = 0, _last_digits(text, 0)
    if last < 0:
        return None
    for formula in _FORMULA.finditer(text):
        if formula.start() <= last < formula.end():
            inner = next(one for one in formula.groups() if one is not None)
            start = max(start, formula.end() - len(inner) - (2 if formula[0].startswith(("\\", "$$")) else 1))
            return (text[start : formula.end()].rstrip("$").removesuffix("\\]").removesuffix("\\)").strip()
                    + _unit_behind(text, formula.end()))  # fmt: skip
    lines = text.rfind("\n", 0, last) + 1
    left = max(start, lines, last - MAX_ANSWER_CHARS)
    right = text.find("\n", last)
    words = list(_WORD.finditer(text, left, min(len(text) if right < 0 else right, last + MAX_ANSWER_CHARS)))
    at = next(i for i, word in enumerate(words) if word.start() <= last < word.end())
    if _BULLET.match(text, left) and left == lines and (text.strip() != text[left:].strip() or len(words) > at + 1):
        words = words[1:]
        at -= 1
    first, behind = _first_of_formula(words, at), at + 1
    if behind < len(words) and re.fullmatch(r"\\(?!times|cdot|text|[%,;!])[a-zA-Z]+\S*", words[behind][0]):
        behind += 1
    elif behind + 1 < len(words) and words[behind][0] in _OPERATORS and _VARIABLE.fullmatch(words[behind + 1][0]):
        behind += 2
    whole = _balanced(text, words, first, behind)
    if (short := _SHORT.fullmatch(whole)) is not None:
        return short[1]
    return whole + (_unit_behind(text, words[behind - 1].end()) if words[behind - 1][0][-1].isalnum() else "")


def _first_of_formula(words: list[re.Match[str]], first: int) -> int:
    while first > 0:
        before, here = words[first - 1][0], words[first][0]
        if before in _OPERATORS:
            if first > 1 and _OPERAND.fullmatch(words[first - 2][0]):
                first -= 2
            else:
                return first - (before == "-" and (first == 1 or bool(_SAYS.search(words[first - 2][0]))))
        elif before.isdecimal() and re.fullmatch(r"(?:\d+/\d+|\\[dt]?frac\S+?)[.,;:!?]*", here):
            return first - 1
        elif (
            (re.fullmatch(r"\d{1,3}", before) and re.fullmatch(r"\d{3}(?:\.\d+)?[.,;:!?)]*", here))
            or (_OPERAND.fullmatch(before) and here[0] in "+-*/^" and len(here) > 1)
            or (_OPERAND.fullmatch(before) and before[-1] in "+*/^(" and len(before) > 1)
        ):
            first -= 1
        else:
            break
    return first


def _last_digits(text: str, start: int) -> int:
    return next((at for at in range(len(text) - 1, start - 1, -1) if text[at] in "0123456789"), -1)


def _balanced(text: str, words: list[re.Match[str]], first: int, behind: int) -> str:
    # Some words as one formula: with those before that its brackets need, or without such brackets.
    end = words[behind - 1].end()
    for start in range(first, max(first - 12, -1), -1):
        whole = text[words[start].start() : end].strip("\"'`*_").rstrip(".,;:!?*_`\"'").lstrip(":#~<>")
        if re.search(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}", whole) and start < first:
            break
        if _split(whole) is not None:
            bracketed = re.fullmatch(r"[(\[]([^()\[\],]*)[)\]]", whole)
            return bracketed[1] if bracketed else whole
    # Brackets of the sentence: what is between the last of them that has a digit.
    parts = re.split(r"[()\[\]{}]+", text[words[first].start() : end])
    return next(one for one in reversed(parts) if re.search(r"[0-9]", one)).strip("\"'`*_").rstrip(".,;:!?")


def _unit_behind(text: str, end: int) -> str:
    found = re.compile(r"[ \t]*(\\?%|[A-Za-z]{2,}|[A-Za-z](?=[²³]))([²³]?)").match(text, end)
    word, power = (found[1].lower(), found[2]) if found else ("", "")
    known = (
        word.lstrip("\\") == "%"
        or word in _SCALES
        or word in _UNIT_NAMES
        or word.removesuffix("s") in _UNITS | {*_UNIT_NAMES}
    )
    return f" {word}{power}" if known and word not in {"in", "per", "man", "sec", "second", "square"} else ""


def _last_boxed(text: str) -> str | None:
    # And of those just before it; None when there is none or it is not closed.
    boxes: list[str] = []
    end = 0
    for start in _BOXED.finditer(text):
        if start.start() < end:
            continue
        depth = 1
        inside = None
        for mark in _ESCAPE_OR_BRACE.finditer(text, start.end()):
            depth += {"{": 1, "}": -1}.get(mark[0], 0)
            if depth == 0:
                inside = text[start.end() : mark.start()].strip()
                break
        if inside is None:
            return None
        if not _BETWEEN_BOXES.fullmatch(text, end, start.start()):
            boxes = []
        boxes.append(inside)
        end = mark.end()
    return ", ".join(dict.fromkeys(boxes)) if boxes else None
