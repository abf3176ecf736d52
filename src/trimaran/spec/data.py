"""Data: what the trainer reads, where documents end, and which tokens are learnt from."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trimaran.spec.noun import Noun


class Data(Noun):
    source: str = Field("synthetic", description="'synthetic', or the path of a prepared data set.")
    documents: Literal["joined", "apart"] = Field(
        "joined", description="apart: tokens attend only inside their own document, and positions restart with it."
    )
    prefix: Literal["row", "document"] = Field(
        "row", description="For a prefix-LM: a prefix length is drawn for every row, or for every document."
    )
    loss_on: Literal["targets", "all"] = Field(
        "targets", description="For a prefix-LM: count only the tokens after the prefix, or all."
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        return source_alone(values)

    @model_validator(mode="after")
    def _has_documents(self) -> Self:
        if self.prefix == "document" and self.documents == "joined":
            raise ValueError(
                "a prefix for every document needs documents apart, but they are joined, so a row does not know where"
                " they end; the nearest that works: documents apart (or prefix row)."
            )
        return self


def source_alone(values: Any) -> Any:
    """`data: synthetic` in a Job file, and in every Job written before Data was a noun, names the source."""
    return {"source": values} if isinstance(values, str) else values
