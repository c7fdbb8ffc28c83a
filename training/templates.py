"""Conversations made from small templates: python -m training.templates 20 shows some.

The text is in chat/*.txt; this module knows how questions are asked in many ways, and how turns follow each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

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
def ways(name: str) -> list[str]:
    """To ask, of asking.txt."""
    text = "\n".join(lines("asking"))
    return text.split(f"[{name}]\n", 1)[1].split("\n[", 1)[0].splitlines()


@cache
def groups() -> dict[str, list[str]]:
    return {name: members.split() for name, members in (line.split(": ") for line in lines("groups"))}


class Relation(NamedTuple):
    """Pairs of things, with forms to ask for the second of a pair, to answer, and to ask for the first."""

    asking: list[str]
    answers: list[str]
    reverse: list[str]
    pairs: list[Pair]


@cache
def relations() -> dict[str, Relation]:
    rows = lines("facts")
    found = {}
    for name, asking, answers, reverse, pairs in zip(*(rows[i::5] for i in range(5)), strict=True):
        asked_back = [] if reverse == "-" else reverse.split(" | ")
        split = [(a, b) for a, b in (pair.split("=", 1) for pair in pairs.split(";"))]
        found[name.strip("[]")] = Relation(asking.split(" | "), answers.split(" | "), asked_back, split)
    return found


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
    questions, answers, reverse, _ = relations()[relation]
    if reverse and chance.random() < 0.15:
        return chance.choice(reverse).format(*pair), statement(answers[0], pair)
    question = chance.choice(questions).format(*pair)
    if question.startswith("Is "):
        yes = "Yes" if pair[1] == "Europe" else "No"
        return question, f"{yes}, {pair[0]} is in {pair[1]}."
    return question, statement(chance.choice(answers), pair)


def fact(chance: Random) -> Turns:
    relation = chance.choice(["capital"] * 5 + ["wrote"] * 3 + [*relations()])
    pair = chance.choice(relations()[relation].pairs)
    if relation == "capital" and chance.random() < 0.08:
        wrong = chance.choice(relations()["capital"].pairs)
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
    pairs = chance.sample(relations()[relation].pairs, chance.randint(2, 3))
    questions, answers, *_ = relations()[relation]
    turns = [(chance.choice(questions).format(*pairs[0]), statement(answers[0], pairs[0]))]
    for pair in pairs[1:]:
        joint = (
            "of"
            if relation in ("capital", "currency", "plural", "opposite")
            else "in"
            if relation == "language"
            else ""
        )
        ask = chance.choice(ways("facts in turn"))
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
    ask = chance.choice(ways("definition"))
    verb = "is" if not bare.endswith("bacteria") else "are"
    return [(ask.format(bare, term), f"{capital(term)} {verb} {meaning}.")]


def difference(chance: Random) -> Turns:
    names, text = chance.choice(lines("differences")).split(": ", 1)
    one, other = names.split(" | ")
    if chance.random() < 0.3:
        one, other = other, one
    code = any(word in text for word in ("Python", "code", "function", "list", "class", "loop", "returns", "program"))
    end = chance.choice((" in Python", "", "")) if code else ""
    ask = chance.choice(ways("difference"))
    return [(capital(ask.format(one, other, end)) if chance.random() < 0.8 else ask.format(one, other, end), text)]


def command(chance: Random) -> Turns:
    name, example, does = (
        part.replace("\0", "|") for part in chance.choice(lines("commands")).replace("\\|", "\0").split("|")
    )
    if chance.random() < 0.7:
        ask = chance.choice(ways("command 2"))
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
    ask = chance.choice(ways("command"))
    return [(ask.format(verb, rest, base), f"Use `{name}`. It {does}. For example: `{example}`")]


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```"


def function(chance: Random) -> Turns:
    heads, code = chance.choice(code_blocks("functions"))
    what = chance.choice(heads)
    is_class = heads[0].startswith("CLASS")
    if is_class:
        what = what.removeprefix("CLASS ")
        ask = chance.choice(ways("function"))
        question = ask.format(what)
    else:
        base = infinitive(what)
        ask = chance.choice(ways("function 2"))
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
        what = chance.choice(ways("how to 2"))
        table = "users" if "users" in what else "orders" if "orders" in what else "customers"
        ask = chance.choice(ways("how to 3"))
        return [(ask.format(what.format(city)), fenced(code.format(city=city).replace("customers", table), "sql"))]
    ask = chance.choice(ways("how to"))
    return [(ask.format(task, place, language), fenced(code, language.lower()))]


def broken_code(chance: Random) -> Turns:
    name, v = chance.choice(ways("broken code 2")), chance.choice("xyn")
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
    ask = chance.choice(ways("broken code"))
    return [(f"{ask}\n\n{fenced(bad) if chance.random() < 0.7 else bad}", f"{why}\n\n{fenced(good)}")]


def explained_code(chance: Random) -> Turns:
    heads, code = chance.choice([block for block in code_blocks("functions") if not block[0][0].startswith("CLASS")])
    ask = chance.choice(ways("explained code"))
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
    then = chance.choice(ways("changed code"))
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
    first = chance.choice(ways("name told 2")).format(name)
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
    ask = chance.choice(ways("name told"))
    return [*turns, (ask, chance.choice((f"Your name is {name}.", f"Your name is {name}!")))]


def told(chance: Random) -> Turns:
    """Something that the user says about himself, and asks for later."""
    city, color, animal, job = (
        chance.choice(CITIES),
        chance.choice(groups()["colors"]),
        chance.choice(("dog", "cat", "rabbit", "bird")),
        chance.choice(groups()["jobs"]),
    )
    pet, age = chance.choice(ways("told")), chance.randint(8, 80)
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
    group = chance.choice(list(groups()))
    members = groups()[group]
    n = chance.randint(2, min(5, len(members)))
    chosen = chance.sample(members, n)
    said = chance.choice((str(n), numbers.WORDS[n]))
    ask = chance.choice(ways("some of"))
    answer = (
        ", ".join(chosen) if chance.random() < 0.6 else "\n".join(f"{i}. {item}" for i, item in enumerate(chosen, 1))
    )
    return [(ask.format(said, group), capital(answer))]


def grammar(chance: Random) -> Turns:
    who, verb, thing = (
        chance.choice((*numbers.NAMES, "he", "she", "my brother")),
        chance.choice(ways("grammar")),
        chance.choice(ways("grammar 2")),
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
