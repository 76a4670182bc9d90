"""DICOM files as slices, and back as files of a new, synthetic series.

Headers are pydicom's work. Pixels are ours: their size is checked before anything is allocated.
"""

from __future__ import annotations

import hashlib
import io
import logging
import struct
import uuid
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any

import imagecodecs
import numpy as np
from pydicom import dcmread, dcmwrite
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames
from pydicom.filereader import data_element_generator
from pydicom.sequence import Sequence
from pydicom.tag import Tag
from pydicom.uid import (
    JPEG2000,
    UID,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)
from pydicom.valuerep import DSfloat

from velogan.data.pictures.about import About
from velogan.data.pictures.picture import Picture, assemble, check_size
from velogan.data.pictures.provenance import Provenance
from velogan.data.pictures.values import PixelFormat, to_channels

logging.getLogger("pydicom").addHandler(logging.NullHandler())  # it logs flaws that it can pass over

_NATIVE = (ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian)
_DECODERS: dict[str, Callable[[bytes], np.ndarray]] = {
    JPEGBaseline8Bit: imagecodecs.jpeg8_decode,
    JPEGLossless: imagecodecs.ljpeg_decode,
    JPEGLosslessSV1: imagecodecs.ljpeg_decode,
    JPEGLSLossless: imagecodecs.jpegls_decode,
    JPEGLSNearLossless: imagecodecs.jpegls_decode,
    JPEG2000Lossless: imagecodecs.jpeg2k_decode,
    JPEG2000: imagecodecs.jpeg2k_decode,
}
"""Of grey frames. JPEG needs to be told how colours are stored; the others do what the file says of them."""

_SYNTAX = 0x00020010
_GREY = ("MONOCHROME1", "MONOCHROME2")
_COLOUR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_NATIVE, RLELossless), ("RGB", "YBR_FULL")),
    JPEGBaseline8Bit: ("RGB", "YBR_FULL", "YBR_FULL_422"),
    **dict.fromkeys((JPEGLSLossless, JPEGLSNearLossless), ("RGB",)),
    **dict.fromkeys((JPEG2000Lossless, JPEG2000), ("RGB", "YBR_RCT", "YBR_ICT")),
}
"""The kinds of colour that are known in each transfer syntax: RGB, and luma with two differences of colour."""
_RESCALE = (("Slope", 1), ("Intercept", 0))
_LONGEST_NAME, _LONGEST_TEXT = 64, 1024  # of the value representations LO and ST
_SERIES_AFTER = 1000  # what is added to the number of the series
_NAMES = uuid.UUID("6f1ffb3e-3a4b-5f0e-9d3a-6d0d1e1f7c11")  # of new identifiers, which are functions of the old ones

_OF_THE_OLD_PIXELS = (
    "SmallestImagePixelValue",
    "LargestImagePixelValue",
    "SmallestPixelValueInSeries",
    "LargestPixelValueInSeries",
    "SmallestImagePixelValueInPlane",
    "LargestImagePixelValueInPlane",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    "WindowCenter",
    "WindowWidth",
    "WindowCenterWidthExplanation",
    "VOILUTFunction",
    "VOILUTSequence",
    "PresentationLUTSequence",
    "RealWorldValueMappingSequence",
    "HistogramSequence",
    "PlanarConfiguration",
    "IconImageSequence",
    "MACParametersSequence",
    "DigitalSignaturesSequence",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
)


_OF_THE_OLD_COLOURS = ("ICCProfile", "ColorSpace")
_OVERLAY_BIT, _OVERLAY_DATA = 0x0102, 0x3000


class DicomScan:
    """A DICOM file: one slice, or as many as it has frames. Made by `read_dicom`."""

    def __init__(self, dataset: Dataset, syntax: UID):
        self._dataset, self._syntax = dataset, syntax
        if "PixelData" not in dataset:
            raise ValueError("it has no pixels: a report, a plan or an index")
        kind = str(dataset.get("PhotometricInterpretation", "none"))
        self._channels = 1 if kind in _GREY else 3
        self._inverted, self._luma_first = kind == "MONOCHROME1", kind.startswith("YBR_FULL")
        known = kind in _GREY or kind in _COLOUR.get(syntax, ())
        if self._channels != int(dataset.get("SamplesPerPixel", 1)) or not known:
            raise ValueError(
                f"its kind of colour ({kind[:20]}, as {syntax.name}) is not supported; save it as MONOCHROME2 or RGB"
            )
        if "DoseGridScaling" in dataset:
            raise ValueError("a plan's dose, which is no picture")
        if "SharedFunctionalGroupsSequence" in dataset or "ModalityLUTSequence" in dataset:
            raise ValueError("an enhanced file, or one whose values are a table: save it as one plain file a slice")
        self._allocated, self.bits = int(dataset.BitsAllocated), int(dataset.BitsStored)
        self._signed = bool(int(dataset.PixelRepresentation))
        top = int(dataset.get("HighBit", self.bits - 1))
        if self._allocated not in (8, 16, 32) or not 1 <= self.bits <= self._allocated or top != self.bits - 1:
            raise ValueError(f"{self.bits} bits of {self._allocated} up to bit {top} for a value are not supported")
        self._slope, self._intercept = (float(dataset.get(f"Rescale{name}", one) or 0) for name, one in _RESCALE)
        if self._channels > 1:
            self._slope, self._intercept = 1.0, 0.0  # colours have none
        if not (np.isfinite([self._slope, self._intercept]).all() and self._slope):
            raise ValueError(f"a rescaling by {self._slope} and {self._intercept} leaves no values")
        if self._channels > 1 and (self._allocated, self.bits, self._signed) != (8, 8, False):
            raise ValueError(f"colour of {self.bits} bits is not supported: save it in 8")
        self._height, self._width = int(dataset.Rows), int(dataset.Columns)
        frames = int(dataset.get("NumberOfFrames", 1) or 1)
        self._frame = self._height * self._width * self._channels * self._allocated // 8
        check_size(self._height, self._width, self._channels * self._allocated / 8, working=8.0 * self._channels)
        self._frames = self._split(dataset.PixelData, frames)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def about(self) -> About:
        """Patient, series and place, as the header has them.

        A series has slices of one direction: pictures that show where they lie often stand among them.
        """
        dataset, position = self._dataset, None
        patient = str(dataset.get("PatientID") or dataset.get("PatientName") or dataset.get("StudyInstanceUID") or "")
        turned, corner = (_numbers(dataset.get(f"Image{name}Patient")) for name in ("Orientation", "Position"))
        if len(turned) == 6 and len(corner) == 3:
            position = float(np.dot(np.cross(turned[:3], turned[3:]), corner))
        number = _numbers([dataset.get("InstanceNumber")])
        return About(
            patient=patient,
            series=" ".join([str(dataset.get("SeriesInstanceUID") or ""), *(f"{one:z.1f}" for one in turned)]).strip(),
            modality=str(dataset.get("Modality") or ""),
            position=position,
            number=int(number[0]) if number else None,
        )

    def picture(self, index: int) -> Picture:
        """A frame with its rescaling; unsigned values without one stay integers, and 8 stored bits of 16 are uint8."""
        body = self._frames[index]
        order = ">" if self._syntax == ExplicitVRBigEndian else "<"
        if self._syntax == RLELossless:
            values = self._unpacked(body)
        elif self._syntax in _DECODERS:
            values = self._decoded(body)
        else:
            values = np.frombuffer(body, f"{order}u{self._allocated // 8}").reshape(-1)
        shape: tuple[int, ...] = (self._height, self._width, self._channels)
        if int(self._dataset.get("PlanarConfiguration", 0) or 0) and self._syntax in _NATIVE and shape[2] > 1:
            array = np.moveaxis(values.reshape(shape[2], *shape[:2]), 0, -1)
        else:
            array = values.reshape(shape)
        if self._luma_first and self._syntax not in _DECODERS:
            array = _as_rgb(array)
        return assemble(self._meant(array))

    def _meant(self, array: np.ndarray) -> np.ndarray:
        """Stored values as what they stand for, brighter for higher."""
        array = array & array.dtype.type(2**self.bits - 1)
        highest = 2**self.bits - 1
        if not self._signed and (self._slope, self._intercept) == (1, 0) and self._allocated <= 16:
            array = array.dtype.type(highest) - array if self._inverted else array
            return array.astype(np.uint8 if self.bits == 8 else array.dtype.newbyteorder("="))
        values = array.astype(np.float64)
        if self._signed:
            values -= (values >= 2 ** (self.bits - 1)) * 2.0**self.bits
        if self._inverted:
            values = (-1 if self._signed else highest) - values
        return (values * self._slope + self._intercept).astype(np.float32)

    def _split(self, data: bytes, frames: int) -> list[memoryview]:
        if self._syntax not in _NATIVE:
            found = [memoryview(frame) for frame in generate_frames(data, number_of_frames=frames)]
            if len(found) != frames:
                raise ValueError(f"{len(found)} of {frames} frames: the file is truncated")
            return found
        if not 1 <= frames <= len(data) // self._frame:
            raise ValueError(f"{len(data)} bytes of pixels for {frames} of {self._frame}: the file is truncated")
        view = memoryview(data)
        return [view[start : start + self._frame] for start in range(0, frames * self._frame, self._frame)]

    def _decoded(self, body: memoryview) -> np.ndarray:
        """The values of a frame that is a JPEG of some kind, whose own size is held against the file's first."""
        data = bytes(body)
        stated, wanted = _inner_size(data), (self._height, self._width, self._channels)
        if stated != wanted:
            raise ValueError(f"a frame of {stated} in a file of {wanted}")
        if self._channels > 1 and self._syntax == JPEGBaseline8Bit:
            stored = "YCBCR" if self._luma_first else "RGB"
            array = imagecodecs.jpeg8_decode(data, colorspace=stored, outcolorspace="RGB")
        else:
            array = _DECODERS[self._syntax](data)
        if array.shape != (wanted if self._channels > 1 else wanted[:2]) or array.dtype.kind not in "iu":
            raise ValueError(f"a frame of shape {array.shape}, {array.dtype}: the file is damaged")
        return array.reshape(-1).astype(f"u{self._allocated // 8}")

    def _unpacked(self, body: memoryview) -> np.ndarray:
        """The values of a run-length encoded frame: a segment for each byte of a value, the highest first."""
        size, deep = self._height * self._width, self._allocated // 8
        count, *starts = struct.unpack_from("<16I", body)
        if count != deep * self._channels:
            raise ValueError(f"{count} segments where {deep * self._channels} make the values")
        planes = np.empty((size, self._channels, deep), np.uint8)
        for index, (start, stop) in enumerate(zip(starts[:count], [*starts[1:count], len(body)])):
            plane = imagecodecs.packbits_decode(bytes(body[start:stop]), out=bytearray(size))
            if len(plane) < size:
                raise ValueError("a segment is too short: the file is damaged")
            planes[:, index // deep, deep - 1 - index % deep] = np.frombuffer(plane, np.uint8)[:size]
        return planes.reshape(-1, deep).copy().view(f"<u{deep}").reshape(-1)

    def written(self, slices: list[np.ndarray], form: PixelFormat, made: Provenance) -> bytes:
        """A file of a new series: patient, study and geometry kept, all that speaks of the old pixels replaced."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of values that were against the rules before
            dataset = self._dataset
            _state(dataset, made)
            self._put(np.stack([to_channels(one, 1) if self._channels == 1 else one for one in slices]), form)
            syntax = self._syntax if self._syntax in _NATIVE else ExplicitVRLittleEndian
            dataset.file_meta.TransferSyntaxUID = syntax
            dataset.preamble = bytes(128)  # it may hold a program
            file = io.BytesIO()
            dcmwrite(file, dataset, enforce_file_format=True)
            return file.getvalue()

    def _put(self, array: np.ndarray, form: PixelFormat) -> None:
        dataset, channels = self._dataset, array.shape[3]
        if channels == 3 and array.dtype != np.uint8:
            raise ValueError(f"colour of type {array.dtype} does not fit into DICOM: translate grey files, or 8 bits")
        low, high = form.range or (0.0, float(np.iinfo(array.dtype).max))
        old = (*_OF_THE_OLD_PIXELS, *(_OF_THE_OLD_COLOURS if channels != self._channels else ()))
        for name in old:
            if name in dataset:
                delattr(dataset, name)
        for overlay in [one.tag for one in dataset if one.tag.group >> 8 == 0x60 and one.tag.elem == _OVERLAY_BIT]:
            if Tag(overlay.group, _OVERLAY_DATA) not in dataset:  # it was in unused bits of the old pixels
                for one in dataset.group_dataset(overlay.group):
                    del dataset[one.tag]
        if "Units" in dataset:
            dataset.Units = "NONE"
        if self._inverted and "PixelIntensityRelationshipSign" in dataset:
            dataset.PixelIntensityRelationshipSign = -dataset.PixelIntensityRelationshipSign
        if channels == 1:
            slope, intercept = DSfloat(1.0), DSfloat(0.0)
            if array.dtype.kind == "f":
                slope, intercept = DSfloat((high - low) / 65535, auto_format=True), DSfloat(low, auto_format=True)
                stored = (array.astype(np.float64) - float(str(intercept))) / float(str(slope))
                array = stored.round().clip(0, 65535)
            dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = slope, intercept, "US"
            dataset.WindowCenter = DSfloat((low + high) / 2, auto_format=True)
            dataset.WindowWidth = DSfloat(high - low, auto_format=True)
            dataset.PresentationLUTShape = "IDENTITY"
        else:
            dataset.PlanarConfiguration = 0
        deep = 8 if array.dtype == np.uint8 and (channels == 3 or self._allocated == 8) else 16
        dataset.PhotometricInterpretation = "RGB" if channels == 3 else "MONOCHROME2"
        dataset.SamplesPerPixel, dataset.PixelRepresentation = channels, 0
        dataset.BitsAllocated, dataset.BitsStored = deep, 8 if array.dtype == np.uint8 and self.bits == 8 else deep
        dataset.HighBit = dataset.BitsStored - 1
        order = ">" if self._syntax == ExplicitVRBigEndian else "<"
        data = array.astype(f"{order}u{deep // 8}").tobytes()
        dataset.PixelData = data + bytes(len(data) % 2)
        dataset["PixelData"].VR = "OB" if deep == 8 and not self._syntax.is_implicit_VR else "OW"
        dataset["PixelData"].is_undefined_length = False


def read_dicom(data: bytes) -> DicomScan:
    """Read the bytes of a DICOM file; raises `ValueError`, and whatever pydicom does of damaged ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of flaws, which they quote
        syntax = _syntax(data)
        if syntax not in (*_NATIVE, RLELossless, *_DECODERS):
            name = syntax.name if syntax.is_transfer_syntax else str(syntax)[:64] or "no transfer syntax"
            mend = "save it uncompressed, as `dcmdjpeg` or gdcm does"
            raise ValueError(f"its compression ({name}) is not supported: {mend}")
        return DicomScan(dcmread(io.BytesIO(data)), syntax)


def _numbers(values: Any) -> list[float]:
    """Finite numbers of a header; none where one of them is something else."""
    try:
        found = [float(one) for one in values or ()]
    except (TypeError, ValueError):
        return []
    return found if np.isfinite(found).all() else []


def _as_rgb(array: np.ndarray) -> np.ndarray:
    """RGB of luma and two differences `(H, W, 3)`, all uint8 (DICOM PS3.3 C.7.6.3.1.2, which is JFIF's)."""
    y, blue, red = (array[..., i].astype(np.float32) - (128 if i else 0) for i in range(3))
    made = np.stack([y + 1.402 * red, y - 0.344136 * blue - 0.714136 * red, y + 1.772 * blue], axis=-1)
    return made.round().clip(0, 255).astype(np.uint8)


def _inner_size(data: bytes) -> tuple[int, int, int] | None:
    """(height, width, channels) that a JPEG, JPEG-LS or JPEG 2000 codestream states."""
    if data[:4] == b"\xff\x4f\xff\x51":
        right, bottom, left, top = struct.unpack_from(">4I", data, 8)
        return bottom - top, right - left, struct.unpack_from(">H", data, 40)[0]
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 <= len(data) and data[at] == 0xFF:
        if data[at + 1] in (0xC0, 0xC1, 0xC3, 0xF7):
            return struct.unpack_from(">HHB", data, at + 5)
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _syntax(data: bytes) -> UID:
    """The transfer syntax, read before pydicom inflates what is deflated."""
    if data[128:132] != b"DICM":
        raise ValueError("it does not begin as a DICOM file does (`DICM` at byte 128)")
    file = io.BytesIO(data)
    file.seek(132)
    for element in data_element_generator(file, False, True, stop_when=lambda tag, *_: tag.group != 2):
        if element.tag == _SYNTAX:
            value: Any = element.value
            text = value if isinstance(value, str) else bytes(value or b"").decode("ascii", "replace")
            return UID(text.rstrip("\0 "))
    return UID("")


def _state(dataset: Dataset, made: Provenance) -> None:
    """Say in the header what this is, where it came from, and who made it; give it identifiers of its own."""
    now = datetime.now()
    source = Dataset()
    source.ReferencedSOPClassUID = dataset.get("SOPClassUID", "")
    source.ReferencedSOPInstanceUID = dataset.get("SOPInstanceUID", "")
    source.PurposeOfReferenceCodeSequence = Sequence([_code("121322", "Source image for image processing operation")])
    dataset.SourceImageSequence = Sequence([source])
    maker = Dataset()
    maker.Manufacturer, maker.ManufacturerModelName = made.program, made.program
    maker.SoftwareVersions = made.version
    maker.ContributionDescription = made.text[:_LONGEST_TEXT]
    maker.PurposeOfReferenceCodeSequence = Sequence([_code("109103", "Modifying Equipment")])
    dataset.ContributingEquipmentSequence = Sequence([*(dataset.get("ContributingEquipmentSequence") or []), maker])
    own, series, study = (str(dataset.get(f"{of}InstanceUID", "")) for of in ("SOP", "Series", "Study"))
    dataset.SOPInstanceUID = _renewed(own or hashlib.sha256(dataset.PixelData).hexdigest(), made)
    dataset.SeriesInstanceUID = _renewed(series or study, made)
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    number = dataset.get("SeriesNumber")
    dataset.SeriesNumber = None if number in (None, "") else int(number) + _SERIES_AFTER
    dataset.SeriesDescription = f"SYNTHETIC {made.program}: {dataset.get('SeriesDescription', '')}"[:_LONGEST_NAME]
    kinds = dataset.get("ImageType") or []
    dataset.ImageType = ["DERIVED", "SECONDARY", *([kinds] if isinstance(kinds, str) else kinds)[2:]]
    dataset.DerivationDescription = made.text[:_LONGEST_TEXT]
    dataset.SyntheticData, dataset.ContentQualification = "YES", "RESEARCH"
    dataset.InstanceCreationDate, dataset.InstanceCreationTime = now.strftime("%Y%m%d"), now.strftime("%H%M%S")


def _renewed(uid: str, made: Provenance) -> UID:
    """An identifier that is a function of the old one, the weights and the version: a second call gives it again."""
    return UID(f"2.25.{uuid.uuid5(_NAMES, f'{uid} {made.sha256} {made.version}').int}")


def _code(value: str, meaning: str) -> Dataset:
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, "DCM", meaning
    return code
