"""The check of a recipe's URL for published weights, before anything is started."""

from pathlib import PurePath
from urllib.parse import urlsplit

from rollcall.schemas.errors import Refused


def check_weights_url(url: str) -> None:
    """Raise Refused for a URL that cannot be opened here, or that has more than a location."""
    if not url:
        return
    from rollcall.schemas.store_urls import require_openable

    place = urlsplit(url)
    if "@" in place.netloc or place.query or place.fragment:
        msg = (
            "policy.weights_url holds more than a place (it is not shown here); credentials come "
            "from the surroundings, as AWS_ACCESS_KEY_ID does, since a recipe and the log are read "
            "by many: give s3://bucket/folder alone"
        )
        raise Refused(msg)
    require_openable("policy.weights_url", url)
    if not place.scheme and not PurePath(url).is_absolute():
        msg = (
            f"policy.weights_url is {url!r}, a directory relative to nobody knows what; give it "
            "from the root on, as trainer and servers see it"
        )
        raise Refused(msg)
