"""Questions about numbers, with their answers: arithmetic, units, percentages, small word problems, what code prints.

Each function takes a random source and returns (question, answer).
"""

from __future__ import annotations

from random import Random

Pair = tuple[str, str]
NAMES = [
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Finn",
    "Grace",
    "Henry",
    "Ida",
    "Jack",
    "Kim",
    "Leo",
    "Maria",
    "Nora",
    "Oscar",
    "Paul",
    "Rosa",
    "Sam",
    "Tom",
    "Vera",
]
THINGS = [
    "apples",
    "books",
    "pencils",
    "coins",
    "stickers",
    "cards",
    "marbles",
    "cookies",
    "oranges",
    "flowers",
    "balls",
    "stamps",
]
BOXES = ("box", "boxes", "holds"), ("bag", "bags", "contains"), ("basket", "baskets", "holds"), ("pack", "packs", "has")
UNITS = (
    ("minutes", "hour", "hours", 60),
    ("seconds", "minute", "minutes", 60),
    ("hours", "day", "days", 24),
    ("days", "week", "weeks", 7),
    ("months", "year", "years", 12),
    ("meters", "kilometer", "kilometers", 1000),
    ("centimeters", "meter", "meters", 100),
    ("millimeters", "centimeter", "centimeters", 10),
    ("grams", "kilogram", "kilograms", 1000),
    ("inches", "foot", "feet", 12),
    ("milliliters", "liter", "liters", 1000),
    ("kilograms", "ton", "tons", 1000),
    ("years", "century", "centuries", 100),
    ("years", "decade", "decades", 10),
    ("eggs", "dozen", "dozen", 12),
    ("cents", "dollar", "dollars", 100),
    ("weeks", "year", "years", 52),
    ("bits", "byte", "bytes", 8),
    ("seconds", "hour", "hours", 3600),
    ("feet", "yard", "yards", 3),
)
FACTORS = (
    ("kilometers", "km", "miles", 0.621),
    ("miles", "mi", "kilometers", 1.609),
    ("inches", "in", "centimeters", 2.54),
    ("pounds", "lb", "kilograms", 0.454),
    ("kilograms", "kg", "pounds", 2.205),
    ("meters", "m", "feet", 3.281),
    ("feet", "ft", "meters", 0.305),
    ("liters", "l", "gallons", 0.264),
    ("centimeters", "cm", "inches", 0.394),
)
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def number(n: float) -> str:
    return f"{n:.2f}".rstrip("0").rstrip(".")


def arithmetic(chance: Random) -> Pair:
    kind = chance.choice("++--*/")
    most = chance.choice((10, 20, 100, 100, 100, 1000))
    a, b = chance.randint(0, most), chance.randint(0, most)
    if kind == "-":
        a, b = max(a, b), min(a, b)
    elif kind == "*":
        a, b = chance.randint(0, chance.choice((12, 12, 30, 99))), chance.randint(0, 12)
        if chance.random() < 0.5:
            a, b = b, a
    elif kind == "/":
        b, quotient = chance.randint(1, 12), chance.randint(1, 20)
        a = b * quotient
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[kind]
    word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[kind]
    sign = {"+": "+", "-": "-", "*": chance.choice("*x"), "/": "/"}[kind]
    sum_ = (
        f"{a} {sign} {b}" if chance.random() < 0.7 else f"{a}{sign}{b}" if chance.random() < 0.4 else f"{a} {word} {b}"
    )
    question = chance.choice(
        (
            "What is {}?",
            "What is {}?",
            "{}",
            "{} = ?",
            "Calculate {}.",
            "How much is {}?",
            "What's {}?",
            "Compute {}.",
            "{}?",
            "Can you calculate {}?",
            "Please calculate {}.",
            "What do you get for {}?",
            "Tell me what {} is.",
            "Solve {}.",
        )
    ).format(sum_)
    spelled = sum_.replace(sign, f" {sign} ").replace("  ", " ") if word not in sum_ else sum_
    return question, chance.choice((f"{spelled} = {result}", f"{a} {word} {b} is {result}.")) if word not in sum_ else (
        f"{a} {word} {b} is {result}."
    )


def more_arithmetic(chance: Random) -> Pair:
    n, m = chance.randint(1, 20), chance.randint(2, 9)
    whole = chance.choice((10, 20, 40, 50, 60, 80, 100, 120, 150, 160, 200, 240, 300, 400, 500, 600, 800, 1000))
    percent = chance.choice((5, 10, 10, 15, 20, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90))
    numbers = [chance.randint(1, 99) for _ in range(chance.randint(3, 6))]
    listed = ", ".join(map(str, numbers))
    p = chance.randint(2, 60)
    divisor = next((i for i in range(2, p) if p % i == 0), None)
    three = [chance.randint(1, 30) for _ in range(3)]
    of = chance.choice(
        ("What is {0}% of {1}?", "How much is {0} percent of {1}?", "Calculate {0}% of {1}.", "{0}% of {1}?")
    )
    even = chance.randint(0, 200)
    few = [chance.randint(1, 10) * 3 for _ in range(3)]
    a, b = chance.sample(range(1, 1000), 2)
    return chance.choice(
        (
            (of.format(percent, whole), f"{percent}% of {whole} is {number(percent * whole / 100)}."),
            (of.format(percent, whole), f"{percent}% of {whole} is {number(percent * whole / 100)}."),
            (f"What is {n} squared?", f"{n} squared is {n * n}."),
            (f"What is the square root of {n * n}?", f"The square root of {n * n} is {n}."),
            (f"What is {m} cubed?", f"{m} cubed is {m**3}."),
            (f"What is 2 to the power of {m}?", f"2 to the power of {m} is {2**m}."),
            (f"What is half of {2 * n}?", f"Half of {2 * n} is {n}."),
            (f"What is twice {n}?", f"Twice {n} is {2 * n}."),
            (f"What is a quarter of {4 * n}?", f"A quarter of {4 * n} is {n}."),
            (f"Sort these numbers: {listed}", ", ".join(map(str, sorted(numbers)))),
            (f"Put these numbers in order: {listed}.", ", ".join(map(str, sorted(numbers)))),
            (f"Which is the largest of {listed}?", f"The largest is {max(numbers)}."),
            (f"What is the smallest number of {listed}?", f"The smallest is {min(numbers)}."),
            (
                f"Is {p} a prime number?",
                f"No, {p} is not prime: it is divisible by {divisor}." if divisor else f"Yes, {p} is a prime number.",
            ),
            (f"Is {even} even or odd?", f"{even} is {'odd' if even % 2 else 'even'}."),
            (f"Which is larger, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}."),
            (
                f"What comes next: {n}, {n + m}, {n + 2 * m}, {n + 3 * m}?",
                f"The next number is {n + 4 * m}: each is {m} more than the one before.",
            ),
            ("What is {} + {} + {}?".format(*three), "{} + {} + {} = {}".format(*three, sum(three))),
            (
                f"What is {three[0]} + {three[1]} * {m}?",
                f"{three[1]} * {m} = {three[1] * m}, and {three[0]} + {three[1] * m} = {three[0] + three[1] * m}.",
            ),
            (
                "What is the average of {}, {} and {}?".format(*few),
                "The average is ({} + {} + {}) / 3 = {}.".format(*few, number(sum(few) / 3)),
            ),
            (f"If x + {n} = {n + m}, what is x?", f"x = {n + m} - {n} = {m}."),
            (f"Solve {m}x = {m * n}.", f"x = {m * n} / {m} = {n}."),
            (
                f"What is the area of a rectangle of {n} by {m} meters?",
                f"The area is {n} * {m} = {n * m} square meters.",
            ),
            (f"What is the perimeter of a square with sides of {n} cm?", f"The perimeter is 4 * {n} = {4 * n} cm."),
        )
    )


def units(chance: Random) -> Pair:
    if chance.random() < 0.55:
        small, one, many, factor = chance.choice(UNITS)
        n = chance.choice((1, 2, 3, 4, 5, 6, 8, 10, 12))
        said = str(n) if chance.random() < 0.6 else WORDS[n]
        what = (
            f"{'a' if one[0] not in 'h' or one != 'hour' else 'an'} {one}"
            if n == 1 and chance.random() < 0.7
            else f"{said} {many if n > 1 else one}"
        )
        ask = chance.choice(
            (
                "How many {0} are in {1}?",
                "How many {0} are there in {1}?",
                "How many {0} does {1} have?",
                "Convert {1} to {0}.",
                "how many {0} in {1}",
            )
        )
        answer = f"There are {n * factor} {small} in {n} {many if n > 1 else one}."
        if n > 1 and chance.random() < 0.5:
            answer = f"{n} {many} are {n} * {factor} = {n * factor} {small}."
        return ask.format(small, what), answer
    if chance.random() < 0.3:
        c = chance.choice((-10, 0, 5, 10, 15, 20, 25, 30, 37, 40, 50, 60, 80, 100))
        f = number(c * 9 / 5 + 32)
        if chance.random() < 0.5:
            return f"Convert {c} degrees Celsius to Fahrenheit.", f"{c} °C is {f} °F."
        return f"What is {f} degrees Fahrenheit in Celsius?", f"{f} °F is {c} °C."
    long, short, other, factor = chance.choice(FACTORS)
    n = chance.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 200))
    said = chance.choice((f"{n} {long}", f"{n} {long}", f"{n} {short}"))
    ask = chance.choice(
        (
            "Convert {} to {}.",
            "How many {1} are {0}?",
            "What is {} in {}?",
            "convert {} to {}",
            "Please convert {} into {}.",
        )
    )
    return ask.format(said, other), f"{n} {long} are about {number(n * factor)} {other}."


def word_problem(chance: Random) -> Pair:
    name, other = chance.sample(NAMES, 2)
    thing = chance.choice(THINGS)
    a, b, c = chance.randint(2, 12), chance.randint(2, 12), chance.randint(1, 9)
    big, small = max(a, b) + c, min(a, b)
    box, boxes, holds = chance.choice(BOXES)
    said = chance.choice((str, lambda n: WORDS[n]))
    speed = chance.choice((20, 30, 40, 50, 60, 80, 100))
    return chance.choice(
        (
            (
                f"{name} has {said(a)} {thing} and buys {said(b)} more. How many {thing} does {name} have now?",
                f"{name} has {a} + {b} = {a + b} {thing}.",
            ),
            (
                f"{name} has {big} {thing} and gives {small} to {other}. How many are left?",
                f"{big} - {small} = {big - small}, so {name} has {big - small} {thing} left.",
            ),
            (
                f"A {box} {holds} {said(a)} {thing}. How many {thing} are in {said(b)} {boxes}?",
                f"{b} {boxes} with {a} {thing} each: {b} * {a} = {a * b} {thing}.",
            ),
            (
                f"There are {a} {thing} in each {box}. {name} has {b} {boxes}. How many {thing} are there?",
                f"{b} * {a} = {a * b} {thing}.",
            ),
            (f"One {box} has {a} {thing}. How many {thing} do {b} {boxes} have?", f"{b} * {a} = {a * b} {thing}."),
            (
                f"{name} shares {a * b} {thing} equally among {b} friends. How many does each get?",
                f"{a * b} / {b} = {a}, so each friend gets {a} {thing}.",
            ),
            (
                f"A ticket costs {a} dollars. How much do {b} tickets cost?",
                f"{b} tickets cost {b} * {a} = {a * b} dollars.",
            ),
            (
                f"{name} is {a + c + 5} years old and {other} is {c} years younger. How old is {other}?",
                f"{other} is {a + c + 5} - {c} = {a + 5} years old.",
            ),
            (
                f"A car drives {speed} kilometers per hour. How far does it go in {c + 1} hours?",
                f"It goes {speed} * {c + 1} = {speed * (c + 1)} kilometers.",
            ),
            (
                f"{name} buys {a} {thing} for {c} dollars each and pays with {a * c + b} dollars. "
                f"How much change does {name} get?",
                f"<think>\n{a} * {c} = {a * c}\n{a * c + b} - {a * c} = {b}\n</think>\n{name} gets {b} dollars back.",
            ),
            (
                f"{name} has {a + b} {thing}, loses {a} and then finds {c}. How many does {name} have?",
                f"<think>\n{a + b} - {a} = {b}\n{b} + {c} = {b + c}\n</think>\n{name} has {b + c} {thing}.",
            ),
            (
                f"{name} reads {a} pages a day. How many pages does {name} read in a week?",
                f"{name} reads 7 * {a} = {7 * a} pages.",
            ),
            (
                f"{name} earns {speed} dollars a day. How much is that in {c + 1} days?",
                f"{c + 1} * {speed} = {speed * (c + 1)} dollars.",
            ),
            (
                f"A movie starts at {a % 9 + 1} o'clock and lasts {c % 3 + 1} hours. When does it end?",
                f"It ends at {a % 9 + 1 + c % 3 + 1} o'clock.",
            ),
        )
    )


def prints(chance: Random) -> Pair:
    """What a few lines of Python print."""
    n, a, b = chance.randint(2, 7), chance.randint(1, 20), chance.randint(1, 9)
    start = chance.randint(1, 4)
    v = chance.choice("ijnkx")
    name = chance.choice(NAMES)
    items = [chance.randint(1, 20) for _ in range(chance.randint(3, 5))]

    def lines(values: object) -> str:
        return "\n".join(str(value) for value in values)  # type: ignore[attr-defined]

    code, output = chance.choice(
        (
            (f"for {v} in range({n}):\n    print({v})", lines(range(n))),
            (f"for {v} in range({start}, {start + n}):\n    print({v})", lines(range(start, start + n))),
            (f"for {v} in range({n}):\n    print({v} * {b})", lines(i * b for i in range(n))),
            (f"x = {a}\ny = {b}\nprint(x + y)", str(a + b)),
            (f"x = {a}\nx = x + {b}\nprint(x)", str(a + b)),
            (f"print({a} * {b})", str(a * b)),
            (f"items = {items}\nprint(len(items))", str(len(items))),
            (f"items = {items}\nprint(items[0])", str(items[0])),
            (f"items = {items}\nprint(items[-1])", str(items[-1])),
            (f"print(max({items}))", str(max(items))),
            (f"print(sum({items[:3]}))", str(sum(items[:3]))),
            (f'name = "{name}"\nprint("Hello, " + name)', f"Hello, {name}"),
            (f'print(f"Hello, {name}!")', f"Hello, {name}!"),
            (f'print("{name}".upper())', name.upper()),
            (f'print(len("{name}"))', str(len(name))),
            (f'print("{name[:2]}" * {min(n, 3)})', name[:2] * min(n, 3)),
            (f'x = {a}\nif x > {b + 3}:\n    print("big")\nelse:\n    print("small")', "big" if a > b + 3 else "small"),
            (f"def f(x):\n    return x * {b}\n\nprint(f({n}))", str(n * b)),
            (f"print([x ** 2 for x in range({n})])", str([x**2 for x in range(n)])),
            (f"print({a} % {b})", str(a % b)),
            (f"print({a} // {b})", str(a // b)),
            (f"i = 0\nwhile i < {n}:\n    print(i)\n    i += 1", lines(range(n))),
        )
    )
    ask = chance.choice(
        (
            "What does this code print?",
            "What is the output of this code?",
            "What does this program print?",
            "What will this Python code print?",
            "What is printed here?",
        )
    )
    block = f"```python\n{code}\n```" if chance.random() < 0.7 else code
    answer = (
        f"It prints:\n\n```\n{output}\n```" if "\n" in output or chance.random() < 0.5 else f"It prints `{output}`."
    )
    return f"{ask}\n\n{block}", answer
