"""Shaded apples and oranges of a common shape, for the rendered data set.

A fruit is a dented sphere seen by an orthographic camera. Geometry, light and leaf belong to the scene; only the skin
(and the apple's stem) depends on the kind, so that each apple has one true orange, and each orange one apple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from velogan.data.rendered.scenery import TILE, Light, draw_noise_tile, look_up, mix, smooth_step, stretch, to_linear

Kind = Literal["apple", "orange"]


@dataclass(frozen=True)
class Fruit:
    """A fruit of a scene: position and size relative to the image, pose in radians, and the skins of both kinds."""

    x: float
    y: float
    radius: float
    roll: float
    tilt: float
    lump: float
    leaf: float
    """Side (by its sign) and length of the leaf; 0: no leaf."""
    stem_bend: float
    redness: float
    ground: np.ndarray
    flush: np.ndarray
    peel_colour: np.ndarray
    streaks: np.ndarray
    noise: np.ndarray
    peel: np.ndarray


@dataclass(frozen=True)
class _Surface:
    """The visible half of a fruit: unit normal (x, y, z), coverage `alpha` and distance to the pole, each `(h, w)`."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    alpha: np.ndarray
    pole: np.ndarray
    """1 - cos of the angle to the fruit's axis."""
    axis: tuple[float, float]


def draw_fruit(random: np.random.Generator, *, x: float, y: float, radius: float) -> Fruit:
    """Sample the pose of a fruit at a position, and the skins of both kinds."""
    is_green = random.random() < 0.25
    ground = to_linear(random.uniform(0.46, 0.58), random.uniform(0.68, 0.78), random.uniform(0.2, 0.32))
    if not is_green:
        ground = to_linear(random.uniform(0.78, 0.88), random.uniform(0.5, 0.66), random.uniform(0.2, 0.3))
    flush = to_linear(random.uniform(0.62, 0.76), random.uniform(0.03, 0.1), random.uniform(0.08, 0.16))
    return Fruit(
        x=x,
        y=y,
        radius=radius,
        roll=random.uniform(-0.35, 0.35),
        tilt=random.uniform(0.45, 0.85),
        lump=random.uniform(-0.03, 0.03),
        leaf=float(random.choice([-1, 1]) * random.uniform(0.5, 0.75) * (random.random() < 0.35)),
        stem_bend=random.uniform(-0.12, 0.12),
        redness=random.uniform(-0.4, -0.2) if is_green else random.uniform(0.65, 0.95),
        ground=ground,
        flush=flush,
        peel_colour=to_linear(random.uniform(1.0, 1.04), random.uniform(0.60, 0.65), random.uniform(0.04, 0.1)),
        streaks=_draw_streaks(random),
        noise=draw_noise_tile(random),
        peel=_draw_peel(random),
    )


def _draw_streaks(random: np.random.Generator) -> np.ndarray:
    """Draw `(64, 1024)` noise over (latitude, longitude), stretched in latitude and periodic in longitude."""
    layers = np.zeros((64, 1024), np.float32)
    for columns, weight in ((24, 0.5), (90, 0.7)):
        cells = random.standard_normal((3, columns)).astype(np.float32)
        layers += weight * stretch(np.concatenate([cells, cells[:, :1]], axis=1), 1024, 64)
    return layers


def _draw_peel(random: np.random.Generator) -> np.ndarray:
    """Draw the orange peel's seamless height map `(256, 256)`: pits of one size."""
    half = TILE // 2
    cells = stretch(random.standard_normal((44, 44)), half, half)
    pits = -np.maximum(cells - 0.1, 0)
    return np.block([[pits, pits[:, ::-1]], [pits[::-1], pits[::-1, ::-1]]]).astype(np.float32)


def paint_fruit(canvas: np.ndarray, fruit: Fruit, kind: Kind, *, light: Light, bounce: np.ndarray) -> np.ndarray:
    """Paint a fruit into linear `canvas` `(3, S, S)`; return its coverage `(S, S)`. `bounce`: light from the ground."""
    size = canvas.shape[-1]
    coverage = np.zeros((size, size), np.float32)
    reach = 1.6 * fruit.radius
    rows = slice(max(0, int((fruit.y - reach) * size)), min(size, int((fruit.y + 1.15 * fruit.radius) * size) + 1))
    columns = slice(max(0, int((fruit.x - reach) * size)), min(size, int((fruit.x + reach) * size) + 1))
    across = ((np.arange(columns.start, columns.stop, dtype=np.float32) + 0.5) / size - fruit.x) / fruit.radius
    up = -((np.arange(rows.start, rows.stop, dtype=np.float32) + 0.5) / size - fruit.y) / fruit.radius
    cosine, sine = np.float32(np.cos(fruit.roll)), np.float32(np.sin(fruit.roll))
    x, y = across * cosine - up[:, None] * sine, across * sine + up[:, None] * cosine
    toward = _turn(light.direction, cosine, sine)
    pixel = 1 / (fruit.radius * size)

    part, cover = canvas[:, rows, columns], coverage[rows, columns]
    surface = _compute_surface(fruit, x, y, pixel)
    skin = _apple_skin if kind == "apple" else _orange_skin
    _blend(part, cover, _shade(fruit, surface, skin, toward, light=light, bounce=bounce), surface.alpha)
    if kind == "apple":
        _blend(part, cover, *_paint_stem(fruit, x, y, pixel))
    if fruit.leaf:
        _blend(part, cover, *_paint_leaf(fruit, x, y, pixel))
    return coverage


def _turn(vector: np.ndarray, cosine: np.float32, sine: np.float32) -> np.ndarray:
    return np.array(
        [vector[0] * cosine - vector[1] * sine, vector[0] * sine + vector[1] * cosine, vector[2]], np.float32
    )


def _blend(part: np.ndarray, cover: np.ndarray, paint: np.ndarray, alpha: np.ndarray) -> None:
    part += (paint - part) * alpha
    np.maximum(cover, alpha, out=cover)


def _compute_surface(fruit: Fruit, x: np.ndarray, y: np.ndarray, pixel: float) -> _Surface:
    distance = np.sqrt(x * x + y * y) + np.float32(1e-6)
    up, side = y / distance, x / distance
    outline = 0.955 + 0.055 * side * side + fruit.lump * side * up
    outline -= 0.06 * np.exp(-14 * (1 - up)) + 0.03 * np.exp(-9 * (1 + up))
    inside = distance / outline
    alpha = np.clip((1 - inside) / pixel + 0.5, 0, 1)
    height = np.sqrt(np.maximum(1 - inside * inside, 0))
    normal_x, normal_y = x / outline, y / outline
    axis = (float(np.cos(fruit.tilt)), float(np.sin(fruit.tilt)))
    pole = 1 - (normal_y * axis[0] + height * axis[1])
    return _Surface(normal_x, normal_y, height, alpha, np.maximum(pole, 0), axis)


def _shade(
    fruit: Fruit, surface: _Surface, skin, toward: np.ndarray, *, light: Light, bounce: np.ndarray
) -> np.ndarray:
    """Light the skin by sky, ground and key light, with a highlight; darken the dimple and the part near the ground."""
    albedo, normal, dimple, gloss, sharpness = skin(fruit, surface)
    facing = normal[0] * toward[0] + normal[1] * toward[1] + normal[2] * toward[2]
    half = toward + np.array([0, 0, 1], np.float32)
    half /= np.linalg.norm(half)
    mirror = np.maximum(normal[0] * half[0] + normal[1] * half[1] + normal[2] * half[2], 0)
    sky = 0.5 + 0.5 * surface.y
    around = light.ambient * (0.45 + 0.55 * sky) + 0.16 * (1 - sky) * bounce
    direct = np.maximum(0.88 * facing + 0.12, 0) * light.colour
    hollow = (1 - 0.55 * dimple) * (1 - 0.45 * smooth_step(-0.55, -1.0, surface.y)) * (0.72 + 0.28 * surface.z)
    return albedo * (around + direct) * hollow + gloss * mirror**sharpness * (1 - dimple)


def _perturb_normal(surface: _Surface, push_x: np.ndarray, push_y: np.ndarray, push_z: np.ndarray | float):
    x, y = surface.x + push_x, surface.y + push_y
    z = surface.z + push_z
    scale = 1 / np.sqrt(x * x + y * y + z * z + 1e-6)
    return x * scale, y * scale, z * scale


def _dent(surface: _Surface, depth: float, width: float):
    """Dent the pole by depth * exp(-pole / width); return the exponential, and the normal's change in x, y and z."""
    dimple = np.exp(-surface.pole / width)
    slope = depth / width * dimple
    along = 1 - surface.pole
    push_y = slope * (surface.axis[0] - surface.y * along)
    return dimple, -slope * surface.x * along, push_y, slope * (surface.axis[1] - surface.z * along)


def _texture_coordinates(surface: _Surface) -> tuple[np.ndarray, np.ndarray]:
    """Return texture coordinates in which equal steps are about equal angles on the sphere."""
    stretched = 1 + 0.35 * (1 - surface.z) ** 2
    return 1.2 + surface.x * stretched * 0.3, 1.2 + surface.y * stretched * 0.3


def _apple_skin(fruit: Fruit, surface: _Surface):
    dimple, push_x, push_y, push_z = _dent(surface, 0.045, 0.045)
    behind = surface.y * surface.axis[1] - surface.z * surface.axis[0]
    longitude = np.arctan2(surface.x, -behind)
    columns = ((longitude / (2 * np.pi) + 0.5) * 1023).astype(np.int32)
    rows = (np.clip(surface.pole * 0.5, 0, 1) * 63).astype(np.int32)
    streaks = fruit.streaks[rows, columns]
    blotches = look_up(fruit.noise, *_texture_coordinates(surface))
    red = smooth_step(0.0, 1.0, fruit.redness + 0.17 * streaks + 0.12 * blotches + 0.12 * np.cos(longitude - 0.6))
    albedo = mix(fruit.ground, fruit.flush, red)
    albedo = mix(albedo, to_linear(0.62, 0.6, 0.22), 0.75 * np.exp(-surface.pole / 0.03))
    return albedo, _perturb_normal(surface, push_x, push_y, push_z), 0.8 * dimple, 0.55, 55


def _orange_skin(fruit: Fruit, surface: _Surface):
    dimple, push_x, push_y, push_z = _dent(surface, 0.012, 0.03)
    u, v = _texture_coordinates(surface)
    u, v = u * 1.1, v * 1.1
    step = 1 / TILE
    here = look_up(fruit.peel, u, v)
    bump = 0.32
    push_x = push_x - bump * (look_up(fruit.peel, u + step, v) - here)
    push_y = push_y - bump * (look_up(fruit.peel, u, v + step) - here)
    albedo = fruit.peel_colour * (1 + 0.1 * here)
    albedo = mix(albedo, to_linear(0.75, 0.66, 0.12), 0.5 * np.exp(-surface.pole / 0.05))
    button = 1 - smooth_step(0.006, 0.012, surface.pole)
    albedo = mix(albedo, to_linear(0.36, 0.44, 0.14), button)
    return albedo, _perturb_normal(surface, push_x, push_y, push_z), 0.5 * dimple, 0.16, 14


def _paint_stem(fruit: Fruit, x: np.ndarray, y: np.ndarray, pixel: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the colour and coverage of a short, bent stem in the dimple."""
    root = 0.95 * float(np.cos(fruit.tilt))
    along = np.clip((y - root) / 0.42, 0, 1)
    centre = fruit.stem_bend * along * along
    width = 0.035 + 0.02 * along * along
    offset = (x - centre) / width
    beyond = np.maximum(np.maximum(root - y, y - root - 0.42), 0)
    distance = np.sqrt((x - centre) ** 2 + beyond**2) - width
    alpha = np.clip(0.5 - distance / pixel, 0, 1)
    return to_linear(0.42, 0.3, 0.16) * (0.75 - 0.45 * np.clip(offset, -1, 1) + 0.3 * along), alpha


def _paint_leaf(fruit: Fruit, x: np.ndarray, y: np.ndarray, pixel: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the colour and coverage of a pointed leaf with a pale rib, rooted at the pole."""
    root, length = 0.98 * float(np.cos(fruit.tilt)), abs(fruit.leaf)
    side = np.sign(fruit.leaf)
    along = (side * x * 0.88 + (y - root) * 0.47) / length
    off = (-side * x * 0.47 + (y - root) * 0.88) / length - 0.35 * along * (1 - along)
    width = 0.5 * np.clip(along, 0, 1) * np.clip(1 - along, 0, 1) ** 0.8
    alpha = np.clip((width - np.abs(off)) * length / pixel + 0.5, 0, 1) * ((along > 0) & (along < 1))
    rib = np.exp(-np.square(off / 0.02)) * 0.35
    shade = 0.8 + 1.6 * off + 0.25 * along + rib
    return to_linear(0.32, 0.58, 0.2) * shade, alpha.astype(np.float32)
