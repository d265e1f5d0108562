"""Five real bugs from the package index, small enough for a laptop.

Each has the releases, the digests of their sources, and the numbers of fail-to-pass and
pass-to-pass tests. Everything else comes from the index when they are built.
"""

from rollcall.sandbox.tasks.release_pair import ReleasePair

SUITE_B = (
    ReleasePair(
        "parse",
        "1.20.0",
        "1.20.1",
        counts=(2, 92),
        sha256=(
            "bd28bae37714b45d5894d77160a16e2be36b64a3b618c81168b3684676aa498b",
            "09002ca350ad42e76629995f71f7b518670bcf93548bdde3684fd55d2be51975",
        ),
    ),
    ReleasePair(
        "pathspec",
        "0.12.0",
        "0.12.1",
        counts=(1, 118),
        sha256=(
            "c57e16065a97b7beb175f13c84d27cb05f7b7315741c2fbd5de541042f4ea6e1",
            "a482d51503a1ab33b1c67a6c3813a26953dbdc71c31dacaef9a838c4e29f5712",
        ),
    ),
    ReleasePair(
        "semver",
        "3.0.1",
        "3.0.2",
        counts=(1, 327),
        sha256=(
            "9ec78c5447883c67b97f98c3b6212796708191d22e4ad30f4570f840171cbce1",
            "6253adb39c70f6e51afed2fa7152bcd414c411286088fb4b9effb133885ab4cc",
        ),
    ),
    ReleasePair(
        "boltons",
        "23.0.0",
        "23.1.0",
        counts=(8, 407),
        sha256=(
            "8c50a71829525835ca3c849c7ed2511610c972b4dddfcd41a4a5447222beb4b0",
            "ab4023d57a69609f7742dcc21c12bb57f2970d278d315f28eb2d3110a64114a8",
        ),
    ),
    ReleasePair(
        "more-itertools",
        "10.1.0",
        "10.2.0",
        counts=(28, 598),
        sha256=(
            "626c369fa0eb37bac0291bce8259b332fd59ac792fa5497b59837309cd5b114a",
            "8fccb480c43d3e99a00087634c06dd02b0d50fbf088b380de5a41a015ec239e1",
        ),
    ),
)
