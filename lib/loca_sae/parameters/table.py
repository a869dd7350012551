"""The parameters as rows, for the tables of the book."""

from typing import Any

from loca_sae.parameters.base import Parameters


def table(model: type[Parameters]) -> list[dict[str, str]]:
    """One row a parameter: name, type, default, meaning; for the tables of the book."""
    return [
        {
            "parameter": name,
            "type": _type_name(field.annotation),
            "default": repr(field.default),
            "meaning": field.description or "",
        }
        for name, field in model.model_fields.items()
    ]


def _type_name(annotation: Any) -> str:
    name = getattr(annotation, "__name__", str(annotation))
    if name == "list":
        inner = annotation.__args__[0]
        # list[Annotated[int, ...]] keeps the bare type as its origin
        return f"list of {getattr(inner, '__origin__', inner).__name__}"
    return str(name)
