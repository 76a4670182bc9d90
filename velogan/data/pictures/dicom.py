"""Read DICOM files as slices, and write slices as files of a new, synthetic series.

pydicom reads headers and pixels. Compressed frames are decoded by imagecodecs, registered with pydicom here: the other
plug-ins are under the GPL, lack lossless JPEG, or take gigabytes for a damaged frame of a few bytes.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import struct
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any

import imagecodecs
import numpy as np
from pydicom import dcmread, dcmwrite
from pydicom.datadict import keyword_for_tag
from pydicom.dataset import Dataset
from pydicom.filereader import data_element_generator
from pydicom.pixels import apply_color_lut, apply_modality_lut, get_decoder, pixel_array
from pydicom.pixels.decoders.base import DecodeRunner
from pydicom.pixels.utils import get_expected_length
from pydicom.sequence import Sequence
from pydicom.tag import Tag
from pydicom.uid import (
    JPEG2000,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    generate_uid,
)
from pydicom.valuerep import DSfloat

from velogan.data.pictures.picture import Picture, assemble, check_size
from velogan.data.pictures.scan_info import Provenance, ScanInfo
from velogan.data.pictures.values import PixelFormat, to_channels

logging.getLogger("pydicom").addHandler(logging.NullHandler())  # it logs flaws that it can ignore
warnings.filterwarnings("ignore", module=r"pydicom\.")  # warnings quote flawed headers

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
DECODER_DEPENDENCIES = dict.fromkeys(_DECODERS, ("imagecodecs",))
"""Required by pydicom: the libraries that the plug-in needs for each transfer syntax."""

_PLUGIN = "velogan-imagecodecs"
_SYNTAX = 0x00020010
_PHASE_TAGS = ("TemporalPositionIdentifier", "AcquisitionNumber", "EchoNumbers")
"""Tags that distinguish slices at one position of a series."""
_GREY, _PALETTE = ("MONOCHROME1", "MONOCHROME2"), "PALETTE COLOR"
_MAX_NAME, _MAX_TEXT = 64, 1024  # characters of the value representations LO and ST
_SERIES_OFFSET = 1000  # added to the number of the series

_STALE_TAGS = re.compile(
    "(Smallest|Largest).*PixelValue|PixelPadding|Window(Center|Width)|(Frame)?VOILUT|(Presentation|Modality)LUTSequence"
    "|PixelValueTransformation|RealWorldValueMapping|Histogram|PlanarConfiguration|IconImage|.*PaletteColorLookupTable"
    "|MACParameters|DigitalSignatures|ExtendedOffsetTable"
)
"""Tags of a file or of its functional groups that describe its original pixels."""
_COLOUR_TAGS = re.compile("ICCProfile|ColorSpace")
_OVERLAY_BIT, _OVERLAY_DATA = 0x0102, 0x3000


class DicomScan:
    """A DICOM file, whose frames are slices; `read_dicom` builds it."""

    def __init__(self, dataset: Dataset):
        if "TransferSyntaxUID" not in dataset.file_meta:  # pydicom has detected the encoding of the elements
            implicit, little = dataset.original_encoding
            syntax = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
            dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else syntax
        self._dataset, self._syntax = dataset, UID(dataset.file_meta.TransferSyntaxUID)
        if "PixelData" not in dataset:
            raise ValueError("it has no pixels: it is a report, a plan or an index")
        if "DoseGridScaling" in dataset:
            raise ValueError("it is the dose of a plan, not an image")
        kind, samples = str(dataset.PhotometricInterpretation), int(dataset.get("SamplesPerPixel", 1))
        self._palette, self._inverted = kind == _PALETTE, kind == "MONOCHROME1"
        self._channels = 3 if self._palette else samples
        if samples != (1 if kind in (*_GREY, _PALETTE) else 3):
            raise ValueError(f"its colour space ({kind[:20]}) is not supported; save it as MONOCHROME2 or RGB")
        self._allocated, self.bits = int(dataset.BitsAllocated), int(dataset.BitsStored)
        high_bit = int(dataset.get("HighBit", self.bits - 1))
        if self._allocated not in (8, 16, 32) or not 1 <= self.bits <= self._allocated or high_bit != self.bits - 1:
            raise ValueError(f"{self.bits} bits of {self._allocated} up to bit {high_bit} per value are not supported")
        if samples > 1 and (self._allocated, self.bits, int(dataset.PixelRepresentation)) != (8, 8, 0):
            raise ValueError(f"colour of {self.bits} bits is not supported: save it in 8")
        check_size(int(dataset.Rows), int(dataset.Columns), samples * self._allocated / 8, working=8.0 * self._channels)
        self._frames = int(dataset.get("NumberOfFrames", 1) or 1)
        if not self._syntax.is_compressed and len(dataset.PixelData) >= 2 * get_expected_length(dataset):
            raise ValueError(f"more pixels than NumberOfFrames={self._frames} states: correct that tag")

    def __len__(self) -> int:
        return self._frames

    @property
    def info(self) -> ScanInfo:
        """The facts in the header; `series` includes the orientation, since localizers often share a series."""
        dataset = self._dataset
        patient = str(dataset.get("PatientID") or dataset.get("PatientName") or dataset.get("StudyInstanceUID") or "")
        axes = _finite_numbers(self._functional_group(0, "PlaneOrientationSequence").get("ImageOrientationPatient"))
        groups = [self._functional_group(frame, "PlanePositionSequence") for frame in range(len(self))]
        corners = [_finite_numbers(group.get("ImagePositionPatient")) for group in groups]
        positions = ()
        if (
            len(axes) == 6
            and all(len(corner) == 3 for corner in corners)
            and (len(self) == 1 or all(group is not dataset for group in groups))
        ):
            normal = np.cross(axes[:3], axes[3:])
            positions = tuple(round(float(np.dot(normal, corner)), 4) for corner in corners)
        number = _finite_numbers([dataset.get("InstanceNumber")])
        return ScanInfo(
            patient=patient,
            series=" ".join([str(dataset.get("SeriesInstanceUID") or ""), *(f"{axis:z.1f}" for axis in axes)]).strip(),
            modality=str(dataset.get("Modality") or ""),
            positions=positions,
            phase=tuple(str(dataset.get(name) or "") for name in _PHASE_TAGS),
            number=int(number[0]) if number else None,
        )

    def _functional_group(self, frame: int, name: str) -> Dataset:
        """Return the functional group `name` of a frame in an enhanced file; the complete header if there is none."""
        own, shared = (
            self._dataset.get(f"{scope}FunctionalGroupsSequence") or [Dataset()] for scope in ("PerFrame", "Shared")
        )
        group = own[min(frame, len(own) - 1)].get(name) or shared[0].get(name)
        return group[0] if group else self._dataset

    def picture(self, index: int) -> Picture:
        """Return a frame: grey in its unit as float32 (uint8 or uint16 if unsigned, not rescaled), colour as uint8."""
        plugin = _PLUGIN if self._syntax in _DECODERS else ""
        array = pixel_array(self._dataset, index=index, decoding_plugin=plugin)
        if self._palette:
            array = apply_color_lut(array, self._dataset)
            array = (array >> 8 if array.itemsize == 2 else array).astype(np.uint8)
        return assemble(self._rescale(array, index) if self._channels == 1 else array)

    def _fill_padding(self, array: np.ndarray, *, is_reversed: bool) -> np.ndarray:
        """Replace padding (PixelPaddingValue, up to PixelPaddingRangeLimit if that is set) by the darkest other value.

        `is_reversed`: lower stored values are brighter.
        """
        value, limit = (self._dataset.get(f"PixelPadding{name}") for name in ("Value", "RangeLimit"))
        if value in (None, ""):
            return array
        limits = np.array([value, value if limit in (None, "") else limit]).astype(array.dtype)
        padding = (array >= limits.min()) & (array <= limits.max())
        data = array[~padding]
        if is_reversed:
            darkest = data.max() if data.size else 2 ** (self.bits - (array.dtype.kind == "i")) - 1
        else:
            darkest = data.min() if data.size else min(0, array.min())
        return np.where(padding, array.dtype.type(darkest), array)

    def _rescale(self, array: np.ndarray, frame: int) -> np.ndarray:
        """Convert stored values to their unit; in the result, higher values are brighter, and padding is dark."""
        group = self._functional_group(frame, "PixelValueTransformationSequence")
        slope, intercept = (
            float(default if group.get(name) in (None, "") else group[name].value)
            for name, default in (("RescaleSlope", 1), ("RescaleIntercept", 0))
        )
        if not (np.isfinite([slope, intercept]).all() and slope):
            raise ValueError(f"a rescaling by {slope} and {intercept} is not valid")
        array = self._fill_padding(array, is_reversed=self._inverted != (slope < 0))
        if self._inverted:
            array = array.dtype.type(2**self.bits - 1 if array.dtype.kind == "u" else -1) - array
        if "ModalityLUTSequence" in self._dataset:
            return apply_modality_lut(array, self._dataset).astype(np.float32)
        if array.dtype.kind == "u" and (slope, intercept) == (1, 0) and self._allocated <= 16:
            return array.astype(np.uint8 if self.bits == 8 else array.dtype)
        return (array.astype(np.float64) * slope + intercept).astype(np.float32)

    def encode(self, slices: list[np.ndarray], pixel_format: PixelFormat, provenance: Provenance) -> bytes:
        """Return the bytes of a file of a new series: same patient, study and geometry, new pixels and pixel tags."""
        dataset = self._dataset
        _mark_as_synthetic(dataset, provenance)
        self._replace_pixels(
            np.stack([to_channels(pixels, 1) if self._channels == 1 else pixels for pixels in slices]), pixel_format
        )
        syntax = self._syntax if self._syntax in _NATIVE else ExplicitVRLittleEndian
        dataset.file_meta.TransferSyntaxUID = syntax
        dataset.preamble = bytes(128)  # it may contain a program
        file = io.BytesIO()
        dcmwrite(file, dataset, enforce_file_format=True)
        return file.getvalue()

    def _replace_pixels(self, array: np.ndarray, pixel_format: PixelFormat) -> None:
        """Store `(N, H, W, C)` pixels, and replace or delete the tags that describe the original pixels."""
        dataset, channels = self._dataset, array.shape[3]
        if "PerFrameFunctionalGroupsSequence" in dataset and not dataset.get("SharedFunctionalGroupsSequence"):
            dataset.SharedFunctionalGroupsSequence = Sequence([Dataset()])
        if channels == 3 and array.dtype != np.uint8:
            raise ValueError(f"colour of type {array.dtype} does not fit into DICOM: translate grey files, or 8 bits")
        low, high = pixel_format.range or (0.0, float(np.iinfo(array.dtype).max))
        groups = [
            *dataset.get("PerFrameFunctionalGroupsSequence", ()),
            *dataset.get("SharedFunctionalGroupsSequence", ()),
        ]
        for container in (dataset, *groups):
            for tag in list(container.keys()):
                keyword, is_recoloured = keyword_for_tag(tag), channels != self._channels
                if _STALE_TAGS.match(keyword) or (is_recoloured and _COLOUR_TAGS.match(keyword)):
                    del container[tag]
        for overlay in [item.tag for item in dataset if item.tag.group >> 8 == 0x60 and item.tag.elem == _OVERLAY_BIT]:
            if Tag(overlay.group, _OVERLAY_DATA) not in dataset:  # it was in unused bits of the original pixels
                for item in dataset.group_dataset(overlay.group):
                    del dataset[item.tag]
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
            rescaling, windowing = (Dataset(), Dataset()) if groups else (dataset, dataset)
            rescaling.RescaleSlope, rescaling.RescaleIntercept = slope, intercept
            rescaling.RescaleType = "US"
            windowing.WindowCenter = DSfloat((low + high) / 2, auto_format=True)
            windowing.WindowWidth = DSfloat(high - low, auto_format=True)
            if groups:
                groups[-1].PixelValueTransformationSequence = Sequence([rescaling])
                groups[-1].FrameVOILUTSequence = Sequence([windowing])
            dataset.PresentationLUTShape = "IDENTITY"
        else:
            dataset.PlanarConfiguration = 0
        bits = 8 if array.dtype == np.uint8 and (channels == 3 or self._allocated == 8) else 16
        dataset.PhotometricInterpretation = "RGB" if channels == 3 else "MONOCHROME2"
        dataset.SamplesPerPixel, dataset.PixelRepresentation = channels, 0
        dataset.BitsAllocated, dataset.BitsStored = bits, 8 if array.dtype == np.uint8 and self.bits == 8 else bits
        dataset.HighBit = dataset.BitsStored - 1
        order = ">" if self._syntax == ExplicitVRBigEndian else "<"
        data = array.astype(f"{order}u{bits // 8}").tobytes()
        dataset.PixelData = data + bytes(len(data) % 2)
        dataset["PixelData"].VR = "OB" if bits == 8 and not self._syntax.is_implicit_VR else "OW"
        dataset["PixelData"].is_undefined_length = False


def read_dicom(data: bytes) -> DicomScan:
    """Read the bytes of a DICOM file. Raises ValueError if it is unsupported, any exception of pydicom if damaged."""
    if data[128:132] != b"DICM":
        raise ValueError("it is not a DICOM file (`DICM` at byte 128 is missing)")
    head = data_element_generator(io.BytesIO(data[132:]), False, True, stop_when=lambda tag, *_: tag.group != 2)
    syntax: Any = next((element.value for element in head if element.tag == _SYNTAX), b"")
    if DeflatedExplicitVRLittleEndian.encode() in (syntax if isinstance(syntax, bytes) else str(syntax).encode()):
        raise ValueError(
            "it is deflated, which has no bound on its size: save it uncompressed, for example by `dcmconv`"
        )
    return DicomScan(dcmread(io.BytesIO(data)))


def is_available(uid: str) -> bool:
    """Return whether frames of a transfer syntax can be decoded; pydicom calls this function of each plug-in."""
    return uid in _DECODERS


def _decode_frame(src: bytes, runner: DecodeRunner) -> bytes:
    """Decode a compressed frame for pydicom, after checking that its size matches the DICOM header."""
    stated, expected = _read_frame_size(src), (runner.rows, runner.columns, runner.samples_per_pixel)
    if stated != expected:
        raise ValueError(f"a frame of {stated} in a file of {expected}")
    if runner.samples_per_pixel > 1 and runner.transfer_syntax == JPEGBaseline8Bit:
        stored = "RGB" if runner.photometric_interpretation == "RGB" else "YCBCR"
        array = imagecodecs.jpeg8_decode(src, colorspace=stored, outcolorspace="RGB")
    else:
        array = _DECODERS[runner.transfer_syntax](src)
    if runner.samples_per_pixel > 1:
        runner.set_option("photometric_interpretation", "RGB")
        runner.set_option("planar_configuration", 0)
    return array.astype(f"<u{runner.bits_allocated // 8}").tobytes()


for _syntax in _DECODERS:
    if _PLUGIN not in get_decoder(_syntax).available_plugins:
        get_decoder(_syntax).add_plugin(_PLUGIN, (__name__, "_decode_frame"))


def _finite_numbers(values: Any) -> list[float]:
    """Return the numbers of a header field; empty if one of them is not a finite number."""
    try:
        numbers = [float(value) for value in values or ()]
    except (TypeError, ValueError):
        return []
    return numbers if np.isfinite(numbers).all() else []


def _read_frame_size(data: bytes) -> tuple[int, int, int] | None:
    """Return (height, width, channels) of a JPEG, JPEG-LS or JPEG 2000 codestream; None if it states no size."""
    if data[:4] == b"\xff\x4f\xff\x51":
        right, bottom, left, top = struct.unpack_from(">4I", data, 8)
        return bottom - top, right - left, struct.unpack_from(">H", data, 40)[0]
    start = 2
    while data[:2] == b"\xff\xd8" and start + 9 <= len(data) and data[start] == 0xFF:
        if data[start + 1] in (0xC0, 0xC1, 0xC3, 0xF7):
            return struct.unpack_from(">HHB", data, start + 5)
        start += 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    return None


def _mark_as_synthetic(dataset: Dataset, provenance: Provenance) -> None:
    """State in the header that the file is synthetic, with its source and provenance, and set new identifiers."""
    now = datetime.now()
    source = Dataset()
    source.ReferencedSOPClassUID = dataset.get("SOPClassUID", "")
    source.ReferencedSOPInstanceUID = dataset.get("SOPInstanceUID", "")
    source.PurposeOfReferenceCodeSequence = Sequence([_code("121322", "Source image for image processing operation")])
    dataset.SourceImageSequence = Sequence([source])
    equipment = Dataset()
    equipment.Manufacturer, equipment.ManufacturerModelName = provenance.program, provenance.program
    equipment.SoftwareVersions = provenance.version
    equipment.ContributionDescription = provenance.text[:_MAX_TEXT]
    equipment.PurposeOfReferenceCodeSequence = Sequence([_code("109103", "Modifying Equipment")])
    dataset.ContributingEquipmentSequence = Sequence([*(dataset.get("ContributingEquipmentSequence") or []), equipment])
    instance, series, study = (str(dataset.get(f"{level}InstanceUID", "")) for level in ("SOP", "Series", "Study"))
    dataset.SOPInstanceUID = _derive_uid(instance or hashlib.sha256(dataset.PixelData).hexdigest(), provenance)
    dataset.SeriesInstanceUID = _derive_uid(series or study, provenance)
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    number = dataset.get("SeriesNumber")
    dataset.SeriesNumber = None if number in (None, "") else int(number) + _SERIES_OFFSET
    dataset.SeriesDescription = f"SYNTHETIC {provenance.program}: {dataset.get('SeriesDescription', '')}"[:_MAX_NAME]
    kinds = dataset.get("ImageType") or []
    dataset.ImageType = ["DERIVED", "SECONDARY", *([kinds] if isinstance(kinds, str) else kinds)[2:]]
    dataset.DerivationDescription = provenance.text[:_MAX_TEXT]
    dataset.SyntheticData, dataset.ContentQualification = "YES", "RESEARCH"
    dataset.InstanceCreationDate, dataset.InstanceCreationTime = now.strftime("%Y%m%d"), now.strftime("%H%M%S")


def _derive_uid(uid: str, provenance: Provenance) -> UID:
    """Derive an identifier from the original one, the weights and the version, so that it is equal in each rerun."""
    return generate_uid(entropy_srcs=[uid, provenance.sha256, provenance.version])


def _code(value: str, meaning: str) -> Dataset:
    """Return an item of a code sequence, with a code that DICOM defines."""
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator = value, "DCM"
    code.CodeMeaning = meaning
    return code
