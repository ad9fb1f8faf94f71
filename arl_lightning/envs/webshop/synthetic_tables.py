"""What the synthetic catalogue is made of: kinds of products, their attributes, options and brands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of product: where it stands, what it is called, what it can be, and what it costs.

    `category` is the department, `path` the hierarchy with ` › ` between its levels, `prices` in whole dollars.
    """

    category: str
    path: str
    query: str
    nouns: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    prices: tuple[int, int]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(","))


# Some stand for the same thing in other words, some only nearly so: a purchase can miss by a hair.
_COLOURS = _listed(
    "black, jet black, white, ivory white, blue, dark blue, blue (navy), light blue, sky blue, red, wine red, green,"
    "dark green, green (olive), gray, dark gray, pink, hot pink, purple, brown, coffee brown, yellow, orange, silver"
)
_OPTIONS = {
    "color": ("color", _COLOURS),
    "clothes": ("size", _listed("x-small, small, medium, large, x-large, xx-large, 3x-large")),
    "shoes": ("size", _listed("6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, 10, 10.5, 11, 12")),
    "ounces": ("size", _listed("2 ounce, 4 ounce, 8 ounce, 8 ounce (pack of 2), 12 ounce, 16 ounce")),
    "packs": ("size", _listed("pack of 1, pack of 2, pack of 3, pack of 4, pack of 6, pack of 12")),
    "inches": ("size", _listed("12 x 12 inch, 16 x 24 inch, 24 x 36 inch, 36 x 48 inch, 18 inch, 20 inch, 24 inch")),
    "feet": ("size", _listed("1 feet, 3 feet, 6 feet, 10 feet, 15 feet, 25 feet, 50 feet")),
    "beds": ("size", _listed("twin, twin xl, full, queen, king, california king")),
    "storage": ("capacity", _listed("16 gb, 32 gb, 64 gb, 128 gb, 256 gb, 512 gb")),
    "scent": ("scent", _listed("lavender, vanilla, coconut, rose, citrus, fresh citrus, eucalyptus, unscented")),
    "flavor": ("flavor name", _listed("original, vanilla, chocolate, dark chocolate, strawberry, sea salt, honey")),
    "tea": ("flavor name", _listed("green tea, black tea, mint, ginger, lemon, lemon ginger, peach, chamomile")),
    "finish": ("finish", _listed("matte, glossy, brushed nickel, polished chrome, oak wood, walnut wood")),
    "style": ("style", _listed("classic, modern, vintage, sport, slim, deluxe")),
}
_ATTRIBUTES = {
    "care": "paraben free, cruelty free, fragrance free, natural ingredients, certified organic, alcohol free",
    "hair": "sulfate free, argan oil, tea tree, dry hair, damaged hair, color treated hair, hair growth",
    "skin": "hyaluronic acid, vitamin c, sensitive skin, dry skin, anti aging, long lasting, shea butter, fine lines",
    "makeup": "long lasting, water proof, high pigment, easy to apply, travel size, light weight, oil free",
    "mouth": "fluoride free, fresh breath, bad breath, sensitive teeth, teeth whitening, travel case",
    "wear": "machine washable, hand washable, light weight, quick drying, classic fit, relaxed fit, regular fit",
    "cloth": "cotton spandex, pure cotton, soft polyester, stretch fabric, short sleeve, long sleeve, button closure",
    "legs": "elastic waist, drawstring closure, high waist, zipper pocket, tummy control, straight leg, wide leg",
    "foot": "rubber sole, memory foam, arch support, non slip, breathable mesh, lace closure, steel toe",
    "device": "easy to use, easy to install, high performance, usb port, fast charging, plug and play, light weight",
    "sound": "noise cancelling, stereo sound, hands free, water resistant, long battery life, wireless bluetooth",
    "video": "high definition, ultra hd, gold plated, high speed, heavy duty, braided cord",
    "picture": "carrying case, optical zoom, night vision, motion detection, high resolution, aluminum alloy",
    "home": "easy to clean, easy to assemble, eco friendly, space saving, heavy duty, fully assembled",
    "wood": "solid wood, engineered wood, metal legs, steel frame, mid century, storage space, contemporary style",
    "soft": "machine washable, super soft, faux leather, memory foam, double sided, blackout lining, high density",
    "light": "led bulb, dimmable light, glass shade, clear glass, energy efficient, remote control, brushed metal",
    "food": "gluten free, non gmo, dairy free, sugar free, low carb, high protein, keto friendly",
    "snack": "low calorie, individually wrapped, ready to eat, plant based, nut free, resealable bag",
    "drink": "caffeine free, freshly roasted, low acid, rich in antioxidants, usda organic, fair trade",
}
_DEPARTMENTS = {
    "beauty": "Beauty & Personal Care",
    "electronics": "Electronics",
    "fashion": "Clothing & Shoes",
    "grocery": "Grocery & Gourmet Food",
    "garden": "Home & Kitchen",
}
_KINDS = """
beauty | Hair Care › Shampoo | hair shampoo | moisture hair shampoo | care hair | ounces scent | 6 45
electronics | Headphones › Earbuds | wireless earbuds | earbuds with microphone | device sound | color style | 15 160
fashion | Men › Shirts | men's dress shirt | men's casual dress shirt | wear cloth | color clothes | 12 70
grocery | Snacks › Cookies | snack cookies | crunchy cookies snack | food snack | flavor packs | 4 48
garden | Furniture › Tables | coffee table | living room coffee table | home wood | finish style | 45 330
beauty | Hair Care › Conditioner | hair conditioner | leave in hair conditioner | care hair | ounces scent | 6 45
electronics | Headphones › Headsets | gaming headset | headset for gaming | device sound | color style | 20 150
fashion | Men › T-Shirts | men's t-shirt | men's graphic t-shirt | wear cloth | color clothes | 8 45
grocery | Snacks › Bars | protein bars | snack bars with protein | food snack | flavor packs | 8 60
garden | Furniture › Chairs | dining chair | kitchen dining chair | home wood | color finish | 40 260
beauty | Skin Care › Face Cream | face cream | day face cream | care skin | ounces packs | 9 80
electronics | Audio › Speakers | portable speaker | outdoor portable speaker | device sound | color style | 18 190
fashion | Women › Dresses | women's dress | women's summer dress | wear cloth | color clothes | 15 90
grocery | Beverages › Tea | herbal tea bags | tea bags | food drink | tea packs | 5 42
garden | Furniture › Shelves | book shelf | corner book shelf | home wood | finish inches | 30 220
beauty | Skin Care › Serum | face serum | night face serum | care skin | ounces packs | 9 80
electronics | Cables › HDMI Cables | hdmi cable | video hdmi cable | device video | color feet | 6 45
fashion | Women › Blouses | women's blouse | women's office blouse | wear cloth | color clothes | 10 60
grocery | Beverages › Coffee | ground coffee | breakfast ground coffee | food drink | flavor ounces | 7 50
garden | Bedding › Pillows | bed pillow | sleeping bed pillow | home soft | beds packs | 14 90
beauty | Skin Care › Body Lotion | body lotion | daily body lotion | care skin | ounces scent | 6 40
electronics | Cables › Chargers | phone charger | charger block for phone | device video | color feet | 8 50
fashion | Women › Pants | women's pants | women's yoga pants | wear legs | color clothes | 12 70
grocery | Snacks › Nuts | roasted nuts | mixed roasted nuts | food snack | flavor ounces | 6 55
garden | Bedding › Blankets | throw blanket | couch throw blanket | home soft | color beds | 15 95
beauty | Makeup › Lipstick | lipstick | liquid lipstick | care makeup | color packs | 5 35
electronics | Cameras › Security | security camera | indoor security camera | device picture | color packs | 25 230
fashion | Men › Pants | men's pants | men's cargo pants | wear legs | color clothes | 14 75
grocery | Snacks › Chips | potato chips | kettle potato chips | food snack | flavor packs | 4 40
garden | Bedding › Curtains | window curtains | bedroom window curtains | home soft | color inches | 16 85
beauty | Makeup › Eyeliner | eyeliner | eyeliner pencil | care makeup | color packs | 4 30
electronics | Cameras › Digital | digital camera | compact digital camera | device picture | color storage | 60 420
fashion | Shoes › Sneakers | running sneakers | sneakers shoes for running | foot wear | color shoes | 25 140
grocery | Sweets › Chocolate | chocolate candy | candy gift chocolate | food snack | packs ounces | 5 45
garden | Lighting › Table Lamps | table lamp | bedside table lamp | home light | color finish | 18 130
beauty | Oral Care › Toothpaste | toothpaste | mint toothpaste | care mouth | ounces packs | 4 28
electronics | Computers › Tablets | tablet computer | kids tablet computer | device picture | color storage | 70 450
fashion | Shoes › Boots | work boots | leather work boots | foot wear | color shoes | 35 170
grocery | Sweets › Syrup | pancake syrup | maple syrup for pancake | food drink | flavor ounces | 6 38
garden | Lighting › Pendant Lights | pendant light | kitchen island pendant light | home light | finish style | 25 190
beauty | Oral Care › Mouthwash | mouthwash | oral rinse mouthwash | care mouth | ounces packs | 5 30
electronics | Computers › Keyboards | keyboard | mechanical keyboard | device sound | color style | 18 150
fashion | Shoes › Sandals | women's sandals | beach sandals for women | foot wear | color shoes | 15 80
grocery | Pantry › Pasta | pasta noodles | spaghetti pasta noodles | food snack | style packs | 4 36
garden | Bath › Bath Towels | bath towels | hotel bath towels | home soft | color packs | 12 70
""".strip()
BRANDS = _listed(
    "Norvana, Ambrely, Castoria, Delmont, Evertide, Fennix, Galvora, Hollin, Ismere, Jorvik, Kestrel, Lumora, Mirabel,"
    "Novik, Ostara, Pellworth, Quillon, Ravenna, Solenne, Tamsin, Umbria, Vellano, Wexford, Yarrow, Zephra, Arden,"
    "Brisa, Corvane, Dunmore, Elowen, Farrow, Greston, Halden, Inverly, Juno, Kaldera, Larkfield, Montrose, Nerin"
)


def _kind(line: str) -> Kind:
    category, path, query, noun, pools, options, prices = (cell.strip() for cell in line.split("|"))
    low, high = (int(price) for price in prices.split())
    return Kind(
        category=category,
        path=f"{_DEPARTMENTS[category]} › {path}",
        query=query,
        nouns=(query, noun),
        attributes=tuple(dict.fromkeys(one for pool in pools.split() for one in _listed(_ATTRIBUTES[pool]))),
        options=tuple(_OPTIONS[option] for option in options.split()),
        prices=(low, high),
    )


KINDS = tuple(_kind(line) for line in _KINDS.split("\n"))
"""All kinds, in an order in which any first few are as unlike each other as can be."""
