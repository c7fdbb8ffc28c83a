"""Conversations made from small templates: python -m training.templates 20 shows some.

The text is in chat/*.txt; this module knows how questions are asked in many ways, and how turns follow each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

from . import numbers

Pair = tuple[str, str]
Turns = list[Pair]
ASKING = (
    "what",
    "why",
    "how",
    "who",
    "when",
    "where",
    "which",
    "is",
    "are",
    "do",
    "does",
    "can",
    "could",
    "will",
    "should",
    "did",
)
BEGINS = (
    "Please tell me: ",
    "I have a question: ",
    "Tell me, ",
    "Hi! ",
    "Hello, ",
    "Quick question: ",
    "Can you tell me, ",
    "So, ",
    "Hey, ",
)
PEOPLE = [
    *numbers.NAMES,
    "Lena",
    "Mia",
    "Lucas",
    "Felix",
    "Julia",
    "Peter",
    "Laura",
    "Max",
    "Sophie",
    "Daniel",
    "Eva",
    "Chris",
    "Olivia",
    "Noah",
]
CITIES = [
    "London",
    "Paris",
    "Madrid",
    "Hamburg",
    "Munich",
    "Vienna",
    "Rome",
    "Oslo",
    "Boston",
    "Chicago",
    "Prague",
    "Lisbon",
    "Zurich",
    "Tokyo",
    "Dublin",
    "Cologne",
    "Milan",
    "Athens",
]
GROUPS = {
    "fruits": "apple banana orange pear cherry grape mango lemon plum peach strawberry kiwi",
    "vegetables": "carrot potato onion tomato cucumber spinach broccoli pepper cabbage pea",
    "animals": "dog cat horse lion elephant rabbit bear wolf tiger fox sheep giraffe",
    "birds": "eagle owl robin sparrow duck swan parrot penguin crow pigeon",
    "colors": "red blue green yellow orange purple brown pink white black",
    "countries in Europe": "France Germany Italy Spain Poland Sweden Norway Greece Portugal Austria",
    "countries in Asia": "Japan China India Thailand Vietnam Indonesia Mongolia Nepal",
    "countries in Africa": "Egypt Kenya Nigeria Morocco Ghana Ethiopia Tunisia Senegal",
    "countries in South America": "Brazil Argentina Chile Peru Colombia Ecuador Uruguay Bolivia",
    "programming languages": "Python Java C Rust Go JavaScript Ruby Haskell Swift Kotlin",
    "sports": "football tennis basketball swimming running volleyball skiing cycling rowing",
    "musical instruments": "piano guitar violin flute drums trumpet cello saxophone harp",
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune",
    "operating systems": "Linux Windows macOS Android iOS FreeBSD",
    "trees": "oak pine birch maple beech willow fir ash",
    "flowers": "rose tulip daisy lily sunflower orchid violet daffodil",
    "big cities": "Tokyo London Paris Berlin Moscow Mumbai Cairo Madrid Chicago Sydney",
    "drinks": "water tea coffee milk juice lemonade cocoa",
    "jobs": "teacher doctor nurse baker engineer farmer pilot lawyer carpenter",
    "pieces of furniture": "table chair bed sofa desk shelf wardrobe",
    "pieces of clothing": "shirt trousers coat hat scarf sock dress jacket",
    "sorting algorithms": "quicksort mergesort heapsort insertion-sort bubble-sort",
    "Python data types": "int float str bool list tuple dict set",
}
RELATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # ways to ask for the second of a pair, to answer, and to ask the other way round
    "wrote": (
        (
            "Who wrote {0}?",
            "Who is the author of {0}?",
            "Which author wrote {0}?",
            "{0} was written by whom?",
            "Do you know who wrote {0}?",
        ),
        ("{0} was written by {1}.", "{1} wrote {0}."),
        (),
    ),
    "painted": (
        ("Who painted {0}?", "Which artist painted {0}?", "{0} was painted by whom?"),
        ("{1} painted {0}.",),
        (),
    ),
    "composed": (("Who composed {0}?", "Which composer wrote {0}?", "Who wrote {0}?"), ("{1} composed {0}.",), ()),
    "invented": (
        ("Who invented {0}?", "Who is the inventor of {0}?", "Who came up with {0}?", "Who created {0}?"),
        ("{0} goes back to {1}.", "It was {1}."),
        (),
    ),
    "built in": (
        ("Where is {0}?", "In which city is {0}?", "Where can I find {0}?", "Where can you see {0}?"),
        ("{0} is in {1}.",),
        (),
    ),
    "young of": (
        ("What is a baby {0} called?", "What do you call a young {0}?", "What is the young of a {0} called?"),
        ("A young {0} is called a {1}.",),
        (),
    ),
    "opposite": (
        (
            'What is the opposite of "{0}"?',
            "What is the opposite of {0}?",
            "Give me the opposite of {0}.",
            "Tell me an antonym of {0}.",
        ),
        ('The opposite of "{0}" is "{1}".',),
        (),
    ),
    "synonym": (
        (
            'What is a synonym for "{0}"?',
            "Give me another word for {0}.",
            "What is another word for {0}?",
            "Give me a synonym of {0}.",
        ),
        ("Other words for {0}: {1}.",),
        (),
    ),
    "plural": (
        ("What is the plural of {0}?", 'What is the plural of "{0}"?', "How do you write the plural of {0}?"),
        ('The plural of "{0}" is "{1}".',),
        (),
    ),
    "past": (
        ("What is the past tense of {0}?", 'What is the past tense of "{0}"?', "What is the past form of to {0}?"),
        ('The past tense of "{0}" is "{1}".',),
        (),
    ),
    "capital": (
        (
            "What is the capital of {0}?",
            "What's the capital of {0}?",
            "What is the capital city of {0}?",
            "Which city is the capital of {0}?",
            "Tell me the capital of {0}.",
            "capital of {0}?",
            "Do you know the capital of {0}?",
            "Name the capital of {0}.",
        ),
        ("The capital of {0} is {1}.", "{1} is the capital of {0}."),
        (
            "{1} is the capital of which country?",
            "Which country has the capital {1}?",
            "Of which country is {1} the capital?",
        ),
    ),
    "symbol": (
        ("What is the chemical symbol of {0}?", "What is the symbol for {0}?", "What is the chemical symbol for {0}?"),
        ("The chemical symbol of {0} is {1}.",),
        ("Which element has the symbol {1}?",),
    ),
    "currency": (
        (
            "What is the currency of {0}?",
            "Which currency is used in {0}?",
            "What money do they use in {0}?",
            "How do people pay in {0}?",
        ),
        ("The currency of {0} is {1}.",),
        (),
    ),
    "language": (
        ("Which language is spoken in {0}?", "What language do people speak in {0}?", "What is the language of {0}?"),
        ("People in {0} speak {1}.",),
        (),
    ),
    "continent": (
        ("On which continent is {0}?", "Which continent is {0} in?", "Where is {0}?", "Is {0} in Europe?"),
        ("{0} is in {1}.",),
        (),
    ),
    **{
        name: (
            (
                f'How do you say "{{0}}" in {name}?',
                f"What is {{0}} in {name}?",
                f'Translate "{{0}}" to {name}.',
                f"Translate {{0}} into {name}.",
                f"What does {{0}} mean in {name}?",
            ),
            (f'"{{0}}" in {name} is "{{1}}".',),
            (),
        )
        for name in ("French", "Spanish", "German", "Italian")
    },
}


@cache
def lines(name: str) -> list[str]:
    text = (Path(__file__).with_name("chat") / f"{name}.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines()[1:] if line.strip()]


@cache
def answered(name: str) -> list[tuple[list[str], list[str]]]:
    """Questions that mean the same, and their answers. A line of questions begins with a small letter or `I`, or has
    bars; it follows the answers to the ones before.
    """
    groups: list[tuple[list[str], list[str]]] = []
    for line in lines(name):
        if " | " in line or (line[0].islower() and line[-1] not in ".!?"):
            groups.append(([part.strip() for part in line.split(" | ")], []))
        else:
            groups[-1][1].append(line.replace("\\n", "\n"))
    return [group for group in groups if group[1]]


@cache
def facts() -> dict[str, list[Pair]]:
    tables = {}
    for line in lines("facts"):
        relation, pairs = line[1:].split("] ", 1)
        tables[relation] = [(a, b) for a, b in (pair.split("=", 1) for pair in pairs.split(";"))]
    return tables


@cache
def code_blocks(name: str) -> list[tuple[list[str], str]]:
    text = (Path(__file__).with_name("chat") / f"{name}.txt").read_text(encoding="utf-8")
    blocks = [block.split("\n", 1) for block in text.split("### ")[1:]]
    return [([part.strip() for part in head.split(" | ")], code.rstrip()) for head, code in blocks]


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def asked(question: str, chance: Random) -> str:
    """A question or request as people type it, with and without capitals, stops and politeness."""
    bare = question.rstrip("?.! ")
    is_question = bare.lower().split()[0].split("'")[0] in ASKING
    style = chance.random()
    if style < 0.5:
        return capital(bare) + ("?" if is_question else chance.choice((".", ".", "", "!")))
    if style < 0.62:
        return bare[:1].lower() + bare[1:] if not bare.startswith("I ") else bare
    if style < 0.72:
        return bare[:1].lower() + bare[1:] + ("?" if is_question else ".")
    if style < 0.8:
        return capital(bare)
    if is_question:
        return chance.choice(BEGINS) + bare[:1].lower() + bare[1:] + "?"
    if bare.split()[0].lower() in (
        "i",
        "i'm",
        "my",
        "you",
        "we",
        "that",
        "today",
        "hi",
        "hello",
        "hey",
        "good",
        "great",
        "thanks",
        "thank",
        "many",
        "perfect",
        "ok",
        "okay",
        "that's",
        "bye",
        "goodbye",
        "yes",
        "no",
        "sorry",
        "another",
    ):
        return capital(bare) + chance.choice((".", "!", "..."))
    low = bare[:1].lower() + bare[1:]
    return chance.choice(
        (
            f"Please {low}.",
            f"Can you {low}?",
            f"Could you please {low}?",
            f"{capital(bare)}, please.",
            f"I want you to {low}.",
        )
    )


def ask_from(name: str) -> Callable[[Random], Turns]:
    def ask(chance: Random) -> Turns:
        questions, answers = chance.choice(answered(name))
        return [(asked(chance.choice(questions), chance), chance.choice(answers))]

    return ask


def statement(form: str, pair: Pair) -> str:
    return capital(form.format(*pair)).replace("..", ".")


def fact_of(relation: str, pair: Pair, chance: Random) -> Pair:
    questions, answers, reverse = RELATIONS[relation]
    if reverse and chance.random() < 0.15:
        return chance.choice(reverse).format(*pair), statement(answers[0], pair)
    question = chance.choice(questions).format(*pair)
    if question.startswith("Is "):
        yes = "Yes" if pair[1] == "Europe" else "No"
        return question, f"{yes}, {pair[0]} is in {pair[1]}."
    return question, statement(chance.choice(answers), pair)


def fact(chance: Random) -> Turns:
    relation = chance.choice(["capital"] * 5 + ["wrote"] * 3 + [*RELATIONS])
    pair = chance.choice(facts()[relation])
    if relation == "capital" and chance.random() < 0.08:
        wrong = chance.choice(facts()["capital"])
        right = wrong == pair
        return [
            (
                f"Is {wrong[1]} the capital of {pair[0]}?",
                f"{'Yes' if right else 'No'}, the capital of {pair[0]} is {pair[1]}.",
            )
        ]
    question, answer = fact_of(relation, pair, chance)
    keep = chance.random() < 0.7 or question[0].islower()
    return [(question if keep else asked(question, chance), answer)]


def facts_in_turn(chance: Random) -> Turns:
    relation = chance.choice(
        ["capital"] * 4
        + ["currency", "language", "wrote", "invented", "plural", "French", "Spanish", "German", "opposite"]
    )
    pairs = chance.sample(facts()[relation], chance.randint(2, 3))
    questions, answers, _ = RELATIONS[relation]
    turns = [(chance.choice(questions).format(*pairs[0]), statement(answers[0], pairs[0]))]
    for pair in pairs[1:]:
        joint = (
            "of"
            if relation in ("capital", "currency", "plural", "opposite")
            else "in"
            if relation == "language"
            else ""
        )
        ask = chance.choice(("And {}?", "And {}?", "What about {}?", "How about {}?", "and {}?"))
        said = f"{joint} {pair[0]}".strip() if ask.lower().startswith("and") and chance.random() < 0.7 else pair[0]
        turns.append((ask.format(said), statement(answers[0], pair)))
    return turns + (closing(chance) if chance.random() < 0.4 else [])


def definition(chance: Random) -> Turns:
    term, meaning = chance.choice(lines("definitions")).split(": ", 1)
    bare = term.split(" ", 1)[1] if term.split(" ", 1)[0] in ("a", "an", "the") else term
    is_word = (
        bare == term
        and " " not in term
        and meaning.split()[0] not in ("the", "a", "an", "when", "how")
        or meaning.startswith("to ")
    )
    if is_word:
        ask = chance.choice(
            (
                'What does "{0}" mean?',
                'What does the word "{0}" mean?',
                "What does {0} mean?",
                "What is the meaning of {0}?",
                'Define "{0}".',
                "Define {0}.",
                "What does it mean to be {0}?" if not meaning.startswith("to ") else "What does it mean to {0}?",
                'Explain the word "{0}".',
                'What is the meaning of the word "{0}"?',
                "meaning of {0}",
            )
        )
        return [
            (
                ask.format(bare),
                chance.choice((f'"{capital(bare)}" means: {meaning}.', f'"{capital(bare)}" means {meaning}.')),
            )
        ]
    ask = chance.choice(
        (
            "What is {1}?",
            "What is {1}?",
            "Explain {1}.",
            "Define {0}.",
            "What does {0} mean?",
            "Can you explain {1}?",
            "Can you explain what {1} is?",
            "Tell me what {1} is.",
            "Explain {0} to me.",
            "What's {1}?",
            "Explain {1} in simple words.",
            "What do you know about {0}?",
            "Describe {1}.",
            "What is meant by {0}?",
            "Give me a short definition of {0}.",
            "Explain {0} in one sentence.",
            "I don't understand {0}. What is it?",
            "what is {1}",
            "Tell me about {0}.",
        )
    )
    verb = "is" if not bare.endswith("bacteria") else "are"
    return [(ask.format(bare, term), f"{capital(term)} {verb} {meaning}.")]


def difference(chance: Random) -> Turns:
    names, text = chance.choice(lines("differences")).split(": ", 1)
    one, other = names.split(" | ")
    if chance.random() < 0.3:
        one, other = other, one
    code = any(word in text for word in ("Python", "code", "function", "list", "class", "loop", "returns", "program"))
    end = chance.choice((" in Python", "", "")) if code else ""
    ask = chance.choice(
        (
            "What is the difference between {} and {}{}?",
            "What's the difference between {} and {}{}?",
            "How do {} and {} differ{}?",
            "Explain the difference between {} and {}{}.",
            "difference between {} and {}{}",
            "{} or {}{}, what is the difference?",
            "How is {} different from {}{}?",
        )
    )
    return [(capital(ask.format(one, other, end)) if chance.random() < 0.8 else ask.format(one, other, end), text)]


def command(chance: Random) -> Turns:
    name, example, does = (
        part.replace("\0", "|") for part in chance.choice(lines("commands")).replace("\\|", "\0").split("|")
    )
    if chance.random() < 0.7:
        ask = chance.choice(
            (
                "What does the command `{}` do?",
                "What does `{}` do?",
                "What does the {} command do?",
                "What does {} do?",
                "What is `{}` used for?",
                "What is the {} command?",
                "Explain the command {}.",
                "What is {} in Linux?",
                "How do I use {}?",
                "what does {} do",
                'What does the command "{}" do?',
                "Explain {}.",
                "What is the command {} for?",
            )
        )
        return [(ask.format(name), f"`{name}` {does}. For example: `{example}`")]
    verb, rest = does.split(" ", 1)
    base = {
        "copies": "copy",
        "searches": "search",
        "does": "do",
        "fetches": "fetch",
        "switches": "switch",
        "processes": "process",
        "creates": "create",
    }.get(verb, verb.removesuffix("s"))
    ask = chance.choice(
        (
            "Which command {0} {1}?",
            "What command {0} {1}?",
            "What is the command that {0} {1}?",
            "How do I {2} {1} in the terminal?",
            "How do I {2} {1} in Linux?",
            "How can I {2} {1} on the command line?",
        )
    )
    return [(ask.format(verb, rest, base), f"Use `{name}`. It {does}. For example: `{example}`")]


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```"


def function(chance: Random) -> Turns:
    heads, code = chance.choice(code_blocks("functions"))
    what = chance.choice(heads)
    is_class = heads[0].startswith("CLASS")
    if is_class:
        what = what.removeprefix("CLASS ")
        ask = chance.choice(
            (
                "Write a Python class {}.",
                "Write a class {} in Python.",
                "Create a Python class {}.",
                "Can you write a Python class {}?",
                "Implement a class {} in Python.",
                "I need a Python class {}.",
                "Please write a simple class {}.",
                "Give me a Python class {}.",
            )
        )
        question = ask.format(what)
    else:
        base = infinitive(what)
        ask = chance.choice(
            (
                "Write a Python function that {0}.",
                "Write a Python function that {0}.",
                "Write a function that {0}.",
                "Write a Python function to {1}.",
                "Can you write a Python function that {0}?",
                "Write Python code that {0}.",
                "I need a Python function that {0}.",
                "Create a function in Python that {0}.",
                "How do I write a function that {0}?",
                "Give me a Python function that {0}.",
                "Please write a Python function that {0}.",
                "python function that {0}",
                "Implement a function that {0}.",
                "Show me a function that {0}.",
                "Write a short Python program that {0}.",
                "How can I {1} in Python?",
                "Write code to {1}.",
                "write a python function to {1}",
                "Define a Python function that {0}.",
            )
        )
        question = ask.format(what, base)
    begin = chance.choice(("", "", "", "", "Here is one:\n\n", "Sure!\n\n"))
    return [(question, begin + fenced(code))]


def infinitive(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    irregular = {
        "does": "do",
        "searches": "search",
        "fetches": "fetch",
        "flattens": "flatten",
        "merges": "merge",
        "divides": "divide",
        "raises": "raise",
        "measures": "measure",
        "finds": "find",
        "multiplies": "multiply",
        "capitalizes": "capitalize",
        "transposes": "transpose",
        "tests": "test",
    }
    base = irregular.get(verb) or (verb.removesuffix("s") if verb.endswith("s") else verb)
    return f"{base} {rest}".strip()


def how_to(chance: Random) -> Turns:
    heads, code = chance.choice(code_blocks("how_to"))
    place, *tasks = heads
    task = chance.choice(tasks)
    if task.startswith("write a query"):
        return [(capital(task) + ".", fenced(code.replace("{city}", task.split()[-1]), "sql"))]
    language = place.removeprefix("in ")
    city = chance.choice(CITIES)
    if "{city}" in code:
        what = chance.choice(
            (
                "selects all customers from {}",
                "finds customers from {}",
                "returns the customers in {}",
                "shows all customers who live in {}",
                "selects every customer from {}",
                "gets all users from {}",
                "selects all orders from {}",
            )
        )
        table = "users" if "users" in what else "orders" if "orders" in what else "customers"
        ask = chance.choice(
            (
                "Write an SQL query that {}.",
                "Write a SQL query that {}.",
                "Give me an SQL query that {}.",
                "I need an SQL query that {}.",
                "Write a query that {}.",
            )
        )
        return [(ask.format(what.format(city)), fenced(code.format(city=city).replace("customers", table), "sql"))]
    ask = chance.choice(
        (
            "How do I {0} {1}?",
            "How do I {0} {1}?",
            "How can I {0} {1}?",
            "How do you {0} {1}?",
            "{2}: how do I {0}?",
            "how to {0} {1}",
            "Show me how to {0} {1}.",
            "What is the way to {0} {1}?",
            "Can you show me how to {0} {1}?",
            "I want to {0} {1}. How?",
            "How does one {0} {1}?",
        )
    )
    return [(ask.format(task, place, language), fenced(code, language.lower()))]


def broken_code(chance: Random) -> Turns:
    name, v = chance.choice(("add", "double", "greet", "square", "total", "area", "show", "half")), chance.choice("xyn")
    n = chance.randint(2, 9)
    bad, good, why = chance.choice(
        (
            (
                f"def {name}({v})\n    return {v} * {n}",
                f"def {name}({v}):\n    return {v} * {n}",
                "The colon after the function's head is missing.",
            ),
            (
                f"def {name}(a, {v})\n    return a - {v}",
                f"def {name}(a, {v}):\n    return a - {v}",
                "There is no colon at the end of the first line.",
            ),
            (
                f"def {name}({v}, b)\n    return {v} + b",
                f"def {name}({v}, b):\n    return {v} + b",
                "A colon is missing after the parentheses.",
            ),
            (
                f"for {v} in range({n})\n    print({v})",
                f"for {v} in range({n}):\n    print({v})",
                "The colon after `range` is missing.",
            ),
            (
                f"if {v} = {n}:\n    print({v})",
                f"if {v} == {n}:\n    print({v})",
                "A comparison needs `==`; `=` assigns a value.",
            ),
            (
                f"if {v} > {n}\n    print({v})",
                f"if {v} > {n}:\n    print({v})",
                "The colon after the condition is missing.",
            ),
            (
                f"def {name}({v}):\nreturn {v} + {n}",
                f"def {name}({v}):\n    return {v} + {n}",
                "The body of the function must be indented.",
            ),
            (f'print("{name}"', f'print("{name}")', "The closing parenthesis is missing."),
            (f'print("{name})', f'print("{name}")', "The closing quotation mark is missing."),
            (
                f"{v} = [1, 2, {n}\nprint({v})",
                f"{v} = [1, 2, {n}]\nprint({v})",
                "The closing bracket of the list is missing.",
            ),
            (
                f'{v} = "{n}"\nprint({v} + 1)',
                f"{v} = {n}\nprint({v} + 1)",
                "A string and a number cannot be added. Use a number, or convert with `int`.",
            ),
            (
                "items = [1, 2, 3]\nprint(items[3])",
                "items = [1, 2, 3]\nprint(items[2])",
                "The index is out of range: the last item has the index 2.",
            ),
            (
                f"while {v} < {n}:\n    print({v})",
                f"{v} = 0\nwhile {v} < {n}:\n    print({v})\n    {v} += 1",
                f"`{v}` never changes, so the loop does not end.",
            ),
        )
    )
    ask = chance.choice(
        (
            "What is wrong with this code?",
            "Fix this code:",
            "Find the error:",
            "Why does this code not work?",
            "What is the mistake in this code?",
            "Can you fix this?",
            "Correct this code:",
            "Find the bug in this code.",
        )
    )
    return [(f"{ask}\n\n{fenced(bad) if chance.random() < 0.7 else bad}", f"{why}\n\n{fenced(good)}")]


def explained_code(chance: Random) -> Turns:
    heads, code = chance.choice([block for block in code_blocks("functions") if not block[0][0].startswith("CLASS")])
    ask = chance.choice(
        (
            "What does this function do?",
            "What does this code do?",
            "Explain this code:",
            "Can you explain this function?",
            "Explain what this Python code does.",
        )
    )
    return [(f"{ask}\n\n{fenced(code)}", f"It {chance.choice(heads)}.")]


def changed_code(chance: Random) -> Turns:
    """A function, and then another one instead."""
    words = {
        "+": ("adds", "add", "sum"),
        "*": ("multiplies", "multiply", "product"),
        "-": ("subtracts", "subtract", "difference"),
        "/": ("divides", "divide", "quotient"),
    }
    first, second = chance.sample(list(words), 2)

    def code(sign: str) -> str:
        return fenced(f"def {words[sign][1]}(a, b):\n    return a {sign} b")

    ask = chance.choice(
        (
            "Write a Python function that {} two numbers.",
            "Write a function that {} two numbers.",
            "I need a function that {} two values.",
        )
    ).format(words[first][0])
    then = chance.choice(
        (
            "Now make it {} them.",
            "Change it so that it {0}s them.",
            "Make it {} them instead, please.",
            "And one to {}?",
            "Now write one that {0}s them.",
            "Can you make it {} instead?",
        )
    )
    then = then.format(words[second][1]).replace("multiplys", "multiplies")
    if chance.random() < 0.35:
        then, last = chance.choice(
            (
                ("Add type hints.", f"def {words[first][1]}(a: float, b: float) -> float:\n    return a {first} b"),
                (
                    "Add a docstring.",
                    f"def {words[first][1]}(a, b):\n"
                    f'    """Return the {words[first][2]} of a and b."""\n'
                    f"    return a {first} b",
                ),
                ("How do I call it?", f"result = {words[first][1]}(6, 3)\nprint(result)"),
                ("How do I use it?", f"print({words[first][1]}(8, 2))"),
            )
        )
        return [(ask, code(first)), (then, fenced(last))]
    return [(ask, code(first)), (then, code(second))]


def name_told(chance: Random) -> Turns:
    name = chance.choice(PEOPLE)
    first = chance.choice(
        (
            "My name is {}.",
            "I'm {}.",
            "I am {}.",
            "Hi, I'm {}.",
            "Hello, my name is {}.",
            "Call me {}.",
            "my name is {}",
            "Hi! My name is {}.",
        )
    ).format(name)
    turns = [
        (
            first,
            chance.choice(
                (
                    f"Nice to meet you, {name}!",
                    f"Hello {name}! How can I help you?",
                    f"Hi {name}! What can I do for you?",
                )
            ),
        )
    ]
    if chance.random() < 0.35:
        turns += chance.choice((fact, sums, command))(chance)[:1]
    ask = chance.choice(
        (
            "What is my name?",
            "What's my name?",
            "Do you remember my name?",
            "Do you know my name?",
            "Who am I?",
            "what is my name",
            "Can you tell me my name?",
        )
    )
    return [*turns, (ask, chance.choice((f"Your name is {name}.", f"Your name is {name}!")))]


def told(chance: Random) -> Turns:
    """Something that the user says about himself, and asks for later."""
    city, color, animal, job = (
        chance.choice(CITIES),
        chance.choice(GROUPS["colors"].split()),
        chance.choice(("dog", "cat", "rabbit", "bird")),
        chance.choice(GROUPS["jobs"].split()),
    )
    pet, age = chance.choice(("Luna", "Max", "Bella", "Rex", "Coco", "Charlie")), chance.randint(8, 80)
    said, reply, ask, answer = chance.choice(
        (
            (f"I live in {city}.", "That sounds like a nice place!", "Where do I live?", f"You live in {city}."),
            (f"I am from {city}.", f"{city} is a nice city.", "Where am I from?", f"You are from {city}."),
            (
                f"My favorite color is {color}.",
                f"{capital(color)} is a nice color!",
                "What is my favorite color?",
                f"Your favorite color is {color}.",
            ),
            (
                f"I have a {animal} named {pet}.",
                f"{pet} is a lovely name!",
                f"What is the name of my {animal}?",
                f"Your {animal} is called {pet}.",
            ),
            (
                f"My {animal} is called {pet}.",
                "What a nice name!",
                f"What is my {animal} called?",
                f"Your {animal} is called {pet}.",
            ),
            (f"I am {age} years old.", "Thank you for telling me.", "How old am I?", f"You are {age} years old."),
            (f"I work as a {job}.", "That is an interesting job!", "What is my job?", f"You work as a {job}."),
        )
    )
    return [(said, reply), (ask, answer)]


def another(chance: Random) -> Turns:
    """The same request again gets another answer."""
    questions, answers = chance.choice(
        [
            group
            for group in [*answered("requests"), *answered("small_talk")]
            if len(group[1]) > 1 and group[0][0].split()[0] in ("tell", "suggest", "recommend", "write", "pick")
        ]
    )
    chosen = chance.sample(answers, min(len(answers), chance.choice((2, 2, 3))))
    more = (
        "Another one.",
        "Another one!",
        "Give me another.",
        "One more, please.",
        "another",
        "Can you give me another one?",
        "Do you have another one?",
        "And another?",
        "Tell me another one.",
        "Something else?",
    )
    turns = [(asked(chance.choice(questions), chance), chosen[0])]
    return (
        turns
        + [(chance.choice(more), answer) for answer in chosen[1:]]
        + (closing(chance) if chance.random() < 0.3 else [])
    )


def some_of(chance: Random) -> Turns:
    group = chance.choice(list(GROUPS))
    members = GROUPS[group].split()
    n = chance.randint(2, min(5, len(members)))
    chosen = chance.sample(members, n)
    said = chance.choice((str(n), numbers.WORDS[n]))
    ask = chance.choice(
        (
            "Name {} {}.",
            "Give me {} {}.",
            "List {} {}.",
            "Tell me {} {}.",
            "Can you name {} {}?",
            "What are {} {}?",
            "name {} {}",
            "Please name {} {}.",
        )
    )
    answer = (
        ", ".join(chosen) if chance.random() < 0.6 else "\n".join(f"{i}. {item}" for i, item in enumerate(chosen, 1))
    )
    return [(ask.format(said, group), capital(answer))]


def grammar(chance: Random) -> Turns:
    who, verb, thing = (
        chance.choice((*numbers.NAMES, "he", "she", "my brother")),
        chance.choice(("go", "like", "want", "need", "play", "eat", "see")),
        chance.choice(("to school", "apples", "the book", "football", "a cake", "the dog")),
    )
    right = f"{who} {'goes' if verb == 'go' else verb + 's'} {thing}"
    ask = chance.choice(
        (
            "Correct this sentence: {}.",
            "Fix the grammar: {}.",
            "What is wrong with this sentence: {}.",
            "Is this correct: {}?",
        )
    )
    return [(ask.format(capital(f"{who} {verb} {thing}")), f"{capital(right)}.")]


def pairs_of(make: Callable[[Random], Pair]) -> Callable[[Random], Turns]:
    return lambda chance: [make(chance)]


sums = pairs_of(numbers.arithmetic)


def closing(chance: Random) -> Turns:
    thanks = next(group for group in answered("small_talk") if group[0][0] == "thanks")
    bye = next(group for group in answered("small_talk") if group[0][0] == "bye")
    questions, answers = chance.choice((thanks, thanks, bye))
    return [(asked(chance.choice(questions), chance), chance.choice(answers))]


def several(chance: Random) -> Turns:
    """Short conversations one after another."""
    turns = ask_from("small_talk")(chance) if chance.random() < 0.5 else []
    for _ in range(chance.randint(1, 3)):
        turns += one(chance)
    return turns + (closing(chance) if chance.random() < 0.5 else [])


SINGLE: list[tuple[float, Callable[[Random], Turns]]] = [
    (9, ask_from("small_talk")),
    (7, ask_from("why")),
    (13, ask_from("requests")),
    (12, fact),
    (9, definition),
    (3, difference),
    (4, command),
    (13, function),
    (8, how_to),
    (3, broken_code),
    (3, explained_code),
    (8, sums),
    (6, pairs_of(numbers.more_arithmetic)),
    (5, pairs_of(numbers.units)),
    (6, pairs_of(numbers.word_problem)),
    (4, pairs_of(numbers.prints)),
    (2, some_of),
    (0.5, grammar),
]
LONGER: list[tuple[float, Callable[[Random], Turns]]] = [
    (2, facts_in_turn),
    (2, changed_code),
    (2, name_told),
    (1, told),
    (2, another),
    (4, several),
]


def one(chance: Random) -> Turns:
    return chance.choices([make for _, make in SINGLE], [weight for weight, _ in SINGLE])[0](chance)


def longer(chance: Random) -> Turns:
    return chance.choices([make for _, make in LONGER], [weight for weight, _ in LONGER])[0](chance)


def generate(n: int, seed: int) -> Iterator[list[dict[str, str]]]:
    """n conversations, as messages."""
    chance = Random(seed)
    for _ in range(n):
        turns = longer(chance) if chance.random() < 0.15 else one(chance)
        yield [
            m
            for user, reply in turns
            for m in ({"role": "user", "content": user}, {"role": "assistant", "content": reply})
        ]


if __name__ == "__main__":
    for messages in generate(int(sys.argv[1]), 0):
        print("\n".join(f"{m['role']:10}{m['content']}" for m in messages), end="\n\n")
