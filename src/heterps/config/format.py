"""How files of text are to be read, where their names and contents do not say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from heterps.config.base import Frozen, Name

FORMAT_KINDS = {
    "parquet": "heterps.data.parquet:ParquetFile",
    "csv": "heterps.data.text.file:CsvFile",
    "tsv": "heterps.data.text.file:TsvFile",
    "jsonl": "heterps.data.text.file:JsonLinesFile",
    "libsvm": "heterps.data.text.file:LibsvmFile",
    "criteo": "heterps.data.text.file:CriteoFile",
}
"""The formats by their names in a job, with the import path of the class that reads each and knows its suffixes."""

if TYPE_CHECKING:
    FormatKind = str
else:
    FormatKind = Literal[tuple(FORMAT_KINDS)]

ColumnType = Literal["integer", "number", "string"]
Character = Annotated[str, Field(min_length=1, max_length=1)]


class Format(Frozen):
    """The format of data files. Every field has a default that fits common files."""

    kind: FormatKind | None = Field(
        None, description="The format of all files; null: that of each file's suffix, such as .csv, .tsv.gz or .jsonl."
    )
    delimiter: Character | None = Field(
        None, description="Character between the values of a line of csv or tsv; null: a comma or a tab."
    )
    names: tuple[Name, ...] | None = Field(
        None, description="Names of the columns of csv or tsv files without a header; null: the first line has them."
    )
    quotes: bool = Field(
        True, description='Whether a value of csv or tsv may stand in double quotes; false: a `"` is like any other.'
    )
    nulls: tuple[str, ...] = Field(
        ("", "NULL", "null", "NaN", "nan", "\\N"), description="Texts of csv and tsv that mean: no value."
    )
    types: dict[Name, ColumnType] = Field(
        {}, description="Types of columns, as in {zip: string}, where the type found in a sample of the rows is wrong."
    )
    lists: dict[Name, Character] = Field(
        {}, description="Columns of csv or tsv that hold lists, with the character between two items: {genres: ;}."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = self.names or ()
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"names: two columns have the same name: {', '.join(doubled)}")
        return self
