"""Prompts to drive a model with, of three domains, written from templates: no data set, no download."""

from __future__ import annotations

from itertools import cycle, islice, product
from typing import Any

DOMAINS = ("math", "code", "chat")

_PEOPLE = ("Ana", "Bo", "Chen", "Dora", "Emil", "Fatou", "Goran", "Hiro")
_MATH = (
    "{name} has {a} apples, buys {b} more and gives away {c}. How many are left? Think step by step.",
    "A train drives {a} km in {c} hours. How far does it drive in {b} hours at the same speed?",
    "{name} saves {c} coins a day. After how many days does {name} have more than {a} coins?",
    "What is {a} + {b} * {c}? Explain every step.",
    "A rectangle is {a} cm long and {c} cm wide. What are its area and its perimeter?",
    "{name} reads {c} pages each evening. A book has {a} pages. How many evenings does it take?",
)
_CODE = (
    "Write a Python function that {task}.",
    "Write a Python function that {task}, with a docstring and two tests.",
    "Explain step by step how you would write a program that {task}.",
)
_TASKS = (
    "reverses a list",
    "counts the words in a text",
    "checks whether a number is prime",
    "merges two sorted lists",
    "finds the largest value in a dictionary",
    "removes duplicates from a list while keeping their order",
    "computes the n-th Fibonacci number",
    "converts Celsius to Fahrenheit",
    "checks whether a string is a palindrome",
    "sums the digits of an integer",
    "sorts a list of tuples by the second entry",
    "reads a CSV file and returns its rows",
)
_CHAT = (
    "Write a short letter to a friend about {topic}.",
    "What should a beginner know about {topic}?",
    "Tell me a story about {topic}.",
    "Compare {topic} today with how it was fifty years ago.",
    "Give me three reasons for and three against {topic}.",
)
_TOPICS = (
    "travelling by train",
    "keeping bees",
    "living in a small town",
    "learning to cook",
    "playing chess",
    "growing tomatoes on a balcony",
    "working at night",
    "owning a dog",
    "learning an old language",
    "walking in the mountains",
)


def prompts(domain: str, count: int, first: int = 0) -> list[str]:
    """Questions number ``first`` to ``first + count - 1`` of a domain; the same number, the same question.

    >>> prompts("code", 1)
    ['Write a Python function that reverses a list.']

    Raises
    ------
    ValueError
        There is no such domain.
    """
    if domain == "math":
        numbers = cycle((12 + 7 * i % 83, 5 + 11 * i % 47, 2 + 3 * i % 7) for i in range(83))
        every = (
            template.format(name=name, a=a, b=b, c=c)
            for (name, template), (a, b, c) in zip(cycle(product(_PEOPLE, _MATH)), numbers, strict=False)
        )
    elif domain == "code":
        every = (template.format(task=task) for template, task in cycle(product(_CODE, _TASKS)))
    elif domain == "chat":
        every = (template.format(topic=topic) for topic, template in cycle(product(_TOPICS, _CHAT)))
    else:
        raise ValueError(f"domain: got {domain!r}, expected {', '.join(DOMAINS)}")
    return list(islice(every, first, first + count))


def chat_tokens(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Tokens of a question as the model is asked it; the bare text where it knows no chat."""
    if not getattr(tokenizer, "chat_template", None):
        return tuple(tokenizer(text)["input_ids"])
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    return tuple(tokenizer(asked, add_special_tokens=False)["input_ids"])
