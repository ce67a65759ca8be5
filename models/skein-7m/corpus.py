"""The training text of skein-7m: the standard library of the Python that runs this script.

All of it is under the PSF licence except the few lines in `EXERCISES` and `SMALL_TALK`, which were written
for this repository:

- `lib`: the library's own .py files, and the language reference that pydoc ships (`pydoc_data.topics`);
- `tests`: its test suite;
- `chat`: conversations made from signatures, docstrings and short functions of `lib`;
- `asked`: typical first questions to a demo: modules of `POPULAR` in several phrasings, exercises, small
talk.

Whole files are held out by a hash of their path, together with the conversations about them. Nothing of
`asked` is held out: those answers should be memorised.
"""

import ast
import hashlib
import importlib
import inspect
import pathlib
import random
import re
import sysconfig
import textwrap

HELD_OUT_ONE_IN = 40
SKIPPED_PARTS = {"site-packages", "__pycache__", "lib2to3", "ensurepip", "pydoc_data", "turtledemo", "lib-dynload"}
SKIPPED_PREFIXES = ("encodings/", "test/encoded_modules", "test/test_tomllib/data", "config-")
MAX_FILE_BYTES = 400_000
MAX_LINE_CHARS = 400

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You answer questions about Python's standard library.",
    "You are a helpful coding assistant.",
    "Answer briefly.",
]

SMALL_TALK = [
    (["Hello", "Hi", "Hello!", "Hi there", "Hey", "Good morning"],
     "Hello! Ask me about the Python standard library."),
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."],
     "I am a very small language model, trained on the Python standard library. Ask me what a function does."),
    (["What can you do?", "How can you help me?", "Help"],
     "I can tell you what a function of the Python standard library does, and write short pieces of Python."),
    (["Thanks", "Thank you", "Thank you!", "Great, thanks."], "You are welcome."),
    (["Bye", "Goodbye", "See you"], "Goodbye!"),
    (["How are you?", "How are you today?"], "I am well, thank you. Ask me about the Python standard library."),
    (["What is Python?", "Tell me about Python.", "Explain Python."],
     "Python is an interpreted, interactive, object-oriented programming language. It has modules, exceptions, "
     "dynamic typing, very high level dynamic data types, and classes."),
]

EXERCISES = [
    ("adds two numbers", "def add(a, b):\n    return a + b"),
    ("multiplies two numbers", "def multiply(a, b):\n    return a * b"),
    ("returns the larger of two numbers", "def larger(a, b):\n    return a if a > b else b"),
    ("computes the factorial of a number",
     "def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result"),
    ("returns the nth Fibonacci number",
     "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"),
    ("reverses a string", "def reverse(text):\n    return text[::-1]"),
    ("checks whether a string is a palindrome",
     "def is_palindrome(text):\n    return text == text[::-1]"),
    ("checks whether a number is prime",
     "def is_prime(n):\n    if n < 2:\n        return False\n    for i in range(2, int(n ** 0.5) + 1):\n"
     "        if n % i == 0:\n            return False\n    return True"),
    ("checks whether a number is even", "def is_even(n):\n    return n % 2 == 0"),
    ("computes the greatest common divisor of two numbers",
     "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a"),
    ("sums a list of numbers",
     "def total(numbers):\n    result = 0\n    for number in numbers:\n        result += number\n    return result"),
    ("returns the mean of a list of numbers", "def mean(numbers):\n    return sum(numbers) / len(numbers)"),
    ("counts the words in a text", "def count_words(text):\n    return len(text.split())"),
    ("counts how often each item occurs in a list",
     "def count_items(items):\n    counts = {}\n    for item in items:\n"
     "        counts[item] = counts.get(item, 0) + 1\n    return counts"),
    ("reads a file", "def read_file(path):\n    with open(path, encoding=\"utf-8\") as file:\n        return file.read()"),
    ("writes text to a file",
     "def write_file(path, text):\n    with open(path, \"w\", encoding=\"utf-8\") as file:\n        file.write(text)"),
    ("reads a JSON file",
     "import json\n\ndef read_json(path):\n    with open(path, encoding=\"utf-8\") as file:\n        return json.load(file)"),
    ("lists the files in a directory",
     "import os\n\ndef list_files(path):\n    return sorted(name for name in os.listdir(path)\n"
     "                  if os.path.isfile(os.path.join(path, name)))"),
    ("removes duplicates from a list",
     "def unique(items):\n    seen = set()\n    result = []\n    for item in items:\n        if item not in seen:\n"
     "            seen.add(item)\n            result.append(item)\n    return result"),
    ("flattens a list of lists",
     "def flatten(lists):\n    return [item for inner in lists for item in inner]"),
    ("sorts a list with quicksort",
     "def quicksort(items):\n    if len(items) <= 1:\n        return items\n    pivot = items[0]\n"
     "    smaller = [x for x in items[1:] if x < pivot]\n    larger = [x for x in items[1:] if x >= pivot]\n"
     "    return quicksort(smaller) + [pivot] + quicksort(larger)"),
    ("finds an item in a sorted list with binary search",
     "def binary_search(items, target):\n    low, high = 0, len(items)\n    while low < high:\n"
     "        middle = (low + high) // 2\n        if items[middle] < target:\n            low = middle + 1\n"
     "        else:\n            high = middle\n    return low"),
    ("prints hello world", "def hello():\n    print(\"Hello, world!\")"),
    ("prints the numbers from 1 to 10", "def count():\n    for i in range(1, 11):\n        print(i)"),
    ("returns the current time as a string",
     "import datetime\n\ndef now():\n    return datetime.datetime.now().isoformat()"),
    ("swaps the keys and values of a dictionary",
     "def swap(mapping):\n    return {value: key for key, value in mapping.items()}"),
]

EXERCISE_QUESTIONS = [
    "Write a function that {}.", "Write a Python function that {}.", "Write a function that {}",
    "Can you write a function that {}?", "Please write a Python function that {}.", "I need a function that {}.",
]
DOC_QUESTIONS = [
    "What does {} do?", "What does {}() do?", "Explain {}.", "What is {}?", "Tell me about {}.", "How do I use {}?",
    "Describe {}.", "what does {} do", "In Python, what does {} do?",
]
CLASS_QUESTIONS = ["What is {}?", "What is {} for?", "Explain {}.", "Tell me about {}.", "What does {} do?", "Describe {}."]
SIGNATURE_QUESTIONS = [
    "What is the signature of {}?", "What are the arguments of {}?", "What arguments does {} take?", "How do I call {}?",
]
CODE_QUESTIONS = ["Write a function `{name}`: {doc}", "Write a Python function: {doc}", "Write {name}. {doc}"]

# Modules asked about most. Their docstrings come from live objects, because many are in C, without a .py
# file.
POPULAR = """builtins math cmath itertools collections functools operator os os.path sys re json random time datetime
string pathlib shutil subprocess threading queue asyncio socket csv copy heapq bisect statistics io tempfile glob
hashlib base64 struct pickle logging argparse unittest contextlib dataclasses enum types typing inspect ast
urllib.parse urllib.request http.client sqlite3 zipfile gzip textwrap pprint fractions decimal secrets uuid
calendar configparser signal array weakref abc traceback timeit""".split()


def held_out(path: str) -> bool:
    """Whether the file at `path` (relative to the library) is kept from training."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0


def library_files():
    """Yields (relative path, text) of every .py file worth reading, in a fixed order."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED_PARTS & set(name.split("/")) or name.startswith(SKIPPED_PREFIXES):
            continue
        if path.stat().st_size > MAX_FILE_BYTES:
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if len(text) > 200 and max(map(len, text.splitlines())) <= MAX_LINE_CHARS:
            yield name, text


def is_test(name: str) -> bool:
    return any(part in ("test", "tests", "idle_test") for part in name.split("/"))


def sections():
    """Returns {kind: {"train": [text], "held_out": [text]}}; texts of `chat` and `asked` are lists of
    messages."""
    out = {kind: {"train": [], "held_out": []} for kind in ("lib", "tests", "chat", "asked")}
    rng = random.Random(7)
    for name, text in library_files():
        split = "held_out" if held_out(name) else "train"
        out["tests" if is_test(name) else "lib"][split].append(text)
        if not is_test(name):
            out["chat"][split].extend(conversations_of_file(name, text, rng))
    for topic, text in reference_topics():
        out["lib"]["held_out" if held_out("topic/" + topic) else "train"].append(text)
    out["asked"]["train"].extend(popular_conversations(rng))
    out["asked"]["train"].extend(exercise_conversations(rng))
    return out


def reference_topics():
    """Yields (topic, text) of the language reference, its heading underlines dropped."""
    from pydoc_data.topics import topics

    for topic, text in sorted(topics.items()):
        yield topic, re.sub(r"\n[*=~^-]{4,}\n", "\n", text)


def first_paragraph(doc: str) -> str:
    """The first paragraph of a docstring, joined to one line and cut at a sentence near 400 characters."""
    paragraphs = [p for p in re.split(r"\n\s*\n", inspect.cleandoc(doc)) if p.strip()]
    if paragraphs and re.fullmatch(r"[\w.]+\(.*\)( -> .*)?", " ".join(paragraphs[0].split())) and len(paragraphs) > 1:
        paragraphs = paragraphs[1:]  # "sqrt(x) -> float", as older C functions open
    line = " ".join(" ".join(paragraphs[:1]).split())
    if len(line) > 400:
        line = line[:400].rsplit(". ", 1)[0].rstrip(".") + "."
    return line


def turns(question: str, answer: str, rng: random.Random):
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if rng.random() < 0.15:
        messages.insert(0, {"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    return messages


def fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def conversations_of_file(name: str, text: str, rng: random.Random):
    """Conversations from the docstrings and short functions of one source file."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = {"posixpath": "os.path"}.get(module, module)
    lines = text.splitlines()
    if doc := ast.get_docstring(tree):
        yield turns(rng.choice(["What is the {} module?", "What is {} for?", "Tell me about the module {}.",
                                "What does the {} module do?"]).format(module), first_paragraph(doc), rng)
    def walk(node, prefix):
        for child in node.body:
            if isinstance(child, ast.ClassDef):
                if doc := ast.get_docstring(child):
                    yield turns(rng.choice(CLASS_QUESTIONS).format(f"{prefix}.{child.name}"), first_paragraph(doc), rng)
                yield from walk(child, f"{prefix}.{child.name}")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not child.name.startswith("__"):
                doc = ast.get_docstring(child)
                if not doc or not (said := first_paragraph(doc)):
                    continue
                called = f"{prefix}.{child.name}"
                yield turns(rng.choice(DOC_QUESTIONS).format(called), said, rng)
                source = textwrap.dedent("\n".join(lines[child.lineno - 1:child.end_lineno]))
                if len(source) < 900 and len(said) < 200 and rng.random() < 0.5:
                    yield turns(rng.choice(CODE_QUESTIONS).format(name=child.name, doc=said), fenced(source), rng)
                elif rng.random() < 0.2:
                    yield turns(rng.choice(SIGNATURE_QUESTIONS).format(called),
                                f"`{called}({ast.unparse(child.args)})`", rng)
    yield from walk(tree, module)


def popular_conversations(rng: random.Random):
    """Questions in several phrasings about each public function and class of the popular modules."""
    for module_name in POPULAR:
        module = importlib.import_module(module_name)
        for name in sorted(vars(module)):
            thing = vars(module)[name]
            if name.startswith("_") or not callable(thing) or not (doc := inspect.getdoc(thing)):
                continue
            home = getattr(thing, "__module__", None) or module_name
            if home.lstrip("_").split(".")[0] not in (module_name.split(".")[0], "posixpath", "posix", "builtins", "genericpath"):
                continue
            if held_out(home.replace(".", "/") + ".py") or not (said := first_paragraph(doc)):
                continue
            names = [name] if module_name == "builtins" else [f"{module_name}.{name}"]
            if isinstance(thing, type):
                names_and_docs = [(names[0], said)]
                if module_name == "builtins" and not issubclass(thing, BaseException):
                    names_and_docs += [(f"{name}.{key}", first_paragraph(inspect.getdoc(value) or ""))
                                       for key, value in sorted(vars(thing).items())
                                       if not key.startswith("_") and callable(value)]
            else:
                names_and_docs = [(names[0], said)]
            for called, text in names_and_docs:
                for question in rng.sample(DOC_QUESTIONS, 4) if text else []:
                    yield turns(question.format(called), text, rng)
            if not isinstance(thing, type):
                try:
                    call = f"`{names[0]}{inspect.signature(thing)}`"
                    if " at 0x" not in call:  # the address of a default object, different each run
                        yield turns(rng.choice(SIGNATURE_QUESTIONS).format(names[0]), call, rng)
                except (ValueError, TypeError):
                    pass


def exercise_conversations(rng: random.Random):
    """Small talk and beginners' exercises, each several times; some as the second turn of a conversation."""
    greeting, hello = SMALL_TALK[0]
    for _ in range(3):
        for does, code in EXERCISES:
            for question in EXERCISE_QUESTIONS:
                talk = turns(question.format(does), fenced(code), rng)
                if rng.random() < 0.25:
                    talk[-2:-2] = [{"role": "user", "content": rng.choice(greeting)}, {"role": "assistant", "content": hello}]
                yield talk
        for questions, answer in SMALL_TALK:
            for question in questions * 2:
                yield turns(question, answer, rng)
