"""Words of a text: those that search compares, and those that say what a product is."""

from __future__ import annotations

import re
from functools import lru_cache


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_STOPWORDS = _set("""
    a an the and or of for to in on at by with without from as is are be am it its that this these those i me my we our
    you your he she they their not no than then so such into up out over under all any each more most other some very
    can will just also only own same too if but was were been has have had do does did about after before between lower
    below less price dollars dollar looking find need want wants would like should must
""")
_UNITS = _set("""
    ounce oz fl inch inche feet foot ft cm mm lb pound gram g kg ml gb tb mb count pack piece set size new
    small medium large xl xx xxl color one two three four
""")
_BASIC = _set("black white blue red green yellow orange purple pink brown gray gold silver beige khaki")
_COLOURS = {colour: colour for colour in _BASIC} | {
    "navy": "blue",
    "grey": "gray",
    "ivory": "white",
    "olive": "green",
    "burgundy": "red",
    "wine": "red",
    "charcoal": "gray",
    "violet": "purple",
}


@lru_cache(maxsize=65536)
def search_words(text: str) -> tuple[str, ...]:
    """Lower-cased words and numbers without stop words, a plural `s` taken off, in the order of the text."""
    words = re.findall(r"[^\W_]+", text.lower())
    return tuple(_singular(word) for word in words if word not in _STOPWORDS)


@lru_cache(maxsize=65536)
def content_words(text: str) -> frozenset[str]:
    """The words that may name a thing: neither stop words nor numbers, units, sizes, colours or single letters.

    The published shop takes nouns found by a part-of-speech model. Without one, adjectives and brands are in here too,
    so that the share of words that two titles have in common is lower for titles with many adjectives, and higher for
    two titles of one brand or with one adjective.
    """
    words = (word for word in search_words(text) if len(word) > 1 and word.isalpha())
    return frozenset(word for word in words if word not in _UNITS and word not in _COLOURS)


@lru_cache(maxsize=65536)
def plain_colour(value: str) -> str:
    """The basic colours that a value names, as `blue` for `dark blue` and for `blue (navy)`; else the value itself."""
    words = re.findall(r"[a-z]+", value.lower())
    return " ".join(dict.fromkeys(_COLOURS[word] for word in words if word in _COLOURS)) or value.lower()


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
