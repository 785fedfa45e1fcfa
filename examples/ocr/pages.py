#!/usr/bin/python3
"""Makes the page images of this example from truth.txt, as a scanner would: a little
turned, grey, with specks. Needs Debian's python3-pil and fonts-dejavu-core; the pages
are kept with the example, so nobody has to run this."""

import random
import sys
import textwrap

from PIL import Image, ImageDraw, ImageFilter, ImageFont

FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSerif.ttf"
WIDTH, HEIGHT, MARGIN = 1000, 760, 70


def page(text, seed):
    rng = random.Random(seed)
    image = Image.new("L", (WIDTH, HEIGHT), 245)
    draw = ImageDraw.Draw(image)
    font = ImageFont.truetype(FONT, 26)
    y = MARGIN
    for paragraph in text.split("\n\n"):
        for line in textwrap.wrap(" ".join(paragraph.split()), 58):
            draw.text((MARGIN, y), line, fill=30, font=font)
            y += 38
        y += 20
    image = image.rotate(rng.uniform(-0.6, 0.6), resample=Image.BICUBIC, fillcolor=245)
    for _ in range(600):
        image.putpixel((rng.randrange(WIDTH), rng.randrange(HEIGHT)), rng.randrange(90, 200))
    image = image.filter(ImageFilter.GaussianBlur(0.6))
    return image.quantize(8)


def main():
    with open("truth.txt", encoding="utf-8") as f:
        pages = f.read().split("\f")
    for n, text in enumerate(pages, 1):
        page(text, n).save(f"pages/{n}.png", optimize=True)
    print(f"{len(pages)} pages")


if __name__ == "__main__":
    sys.exit(main())
