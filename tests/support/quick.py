"""Settings that make learning quick, whatever the method has use for."""

from typing import Any

from ponn.methods import used_by


def quick(method: str, **given: Any) -> dict[str, Any]:
    """Those of the settings that the method has use for."""
    return {name: value for name, value in given.items() if name in used_by(method)}
