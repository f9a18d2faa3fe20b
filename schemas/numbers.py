"""The ranges of numbers in records: whatever decodes can be counted with, stored and shown by every reader.

A reader adds counts up, compares versions with those of tokens (32-bit), and shows times as dates. So a number that no
honest writer can mean is refused where it is read, rather than somewhere behind.
"""

from typing import Annotated

from pydantic import Field

MAX_COUNT = 2**63 - 1  # of whatever is counted: what fits into a signed integer of 64 bits, as Kafka's offsets do
MAX_VERSION = 2**31 - 1  # 32 bits are what experiences have for it
MAX_SECONDS = 1e9  # of a duration: 31 years
MAX_MIB = 1e9  # of memory
MAX_TIME_S = 253_402_300_799  # of a time since the Unix epoch: the end of the year 9999, which is where dates end

type Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
type Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
type Version = Annotated[int, Field(ge=0, le=MAX_VERSION)]  # a model version; also a step, which makes one
type VersionOrNone = Annotated[int, Field(ge=-1, le=MAX_VERSION)]  # -1 stands for no version
type Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
type Time = Annotated[float, Field(ge=0, le=MAX_TIME_S, allow_inf_nan=False)]  # since the Unix epoch
type Port = Annotated[int, Field(ge=0, le=65_535)]
