"""Resemblyzer's speaker encoder, run from its published weights.

The package itself does not import on a current Python: it wants `webrtcvad` (a source package that needs a compiler
and setuptools' removed `pkg_resources`), `typing` and a removed module of scipy, of which speaker similarity
uses nothing. So its weights are read from the installed package, or from a path, and run here: 40 mel
bands of 25 ms windows every 10 ms, windows of 1.6 s through a three-layer LSTM, the mean of the windows' embeddings
(Wan et al. 2018, "Generalized End-to-End Loss for Speaker Verification"). The embeddings are those of the package's
`VoiceEncoder.embed_utterance`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.accuracy.packages import brief
from harness.errors import UsageError

if TYPE_CHECKING:
    import torch

RATE = 16_000
LEVEL = -30.0
"""dB below full scale that speech is brought to before it is encoded (Resemblyzer's `audio_norm_target_dBFS`)."""

_FFT, _HOP, _BANDS = 400, 160, 40
_FRAMES = 160
"""Mel frames of one window, 1.6 s."""
_STEP = 77
"""Frames from one window to the next: 1.3 windows a second."""
_COVERAGE = 0.75
"""Share of the last window that must be sound; else it is dropped."""
_HIDDEN, _LAYERS, _SIZE = 256, 3, 256

Floats = npt.NDArray[np.float32]


class SpeakerNetwork:
    """The LSTM and its projection.

    Raises:
        UsageError: the file is not a checkpoint of Resemblyzer's.
    """

    def __init__(self, weights: Path, device: str) -> None:
        import torch

        lstm = torch.nn.LSTM(_BANDS, _HIDDEN, _LAYERS, batch_first=True)
        linear = torch.nn.Linear(_HIDDEN, _SIZE)
        try:
            state = torch.load(weights, map_location="cpu", weights_only=True)["model_state"]
            for name, part in (("lstm", lstm), ("linear", linear)):
                part.load_state_dict(
                    {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
                )
            self._lstm, self._linear, self._device = lstm.to(device).eval(), linear.to(device).eval(), device
        except Exception as error:
            raise UsageError(
                f"sim.model: found {weights}, which does not load on {device} ({brief(error)}); "
                "allowed: the pretrained.pt of Resemblyzer"
            ) from error

    def __call__(self, samples: Floats) -> Floats:
        """Embedding, float32 (256,), of unit length, of 16 kHz mono samples, float32 (frames,), at `LEVEL`."""
        import torch

        starts = _window_starts(len(samples))
        needed = (starts[-1] + _FRAMES) * _HOP
        padded = np.pad(samples, (0, max(0, needed - len(samples))))
        mel = mel_bands(padded)
        with torch.inference_mode():
            windows = torch.from_numpy(np.stack([mel[start : start + _FRAMES] for start in starts])).to(self._device)
            mean: torch.Tensor = self._embed(windows).mean(dim=0)
            return (mean / mean.norm()).cpu().numpy()  # type: ignore[no-any-return]  # torch says Any

    def _embed(self, windows: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self._lstm(windows)
        raw: torch.Tensor = self._linear(hidden[-1]).relu()
        lengths: torch.Tensor = raw.norm(dim=1, keepdim=True)
        return raw / lengths


def mel_bands(samples: Floats) -> Floats:
    """Power in mel bands, not logarithmic: float32 (1 + frames // 160, 40)."""
    around = np.pad(samples, _FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(around, _FFT)[::_HOP]
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(_FFT) / _FFT)
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    return (power @ _mel_filters().T).astype(np.float32)


def _mel_filters() -> npt.NDArray[np.float64]:
    """Triangles of equal area on Slaney's mel scale (linear to 1 kHz, 27 bands per factor 6.4 above): (40, 201)."""
    edges = _hertz(np.linspace(0.0, _mel(RATE / 2.0), _BANDS + 2))
    bins = np.linspace(0.0, RATE / 2.0, 1 + _FFT // 2)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.clip(np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)), 0.0, None)
    areas: npt.NDArray[np.float64] = triangles * 2.0 / (high - low)
    return areas


_LINEAR = 200.0 / 3.0
_CORNER = 1000.0
_LOG_STEP = float(np.log(6.4)) / 27.0


def _mel(hertz: float) -> float:
    return _CORNER / _LINEAR + float(np.log(hertz / _CORNER)) / _LOG_STEP


def _hertz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = mel - _CORNER / _LINEAR
    return np.where(above < 0.0, mel * _LINEAR, _CORNER * np.exp(_LOG_STEP * np.maximum(above, 0.0)))


def _window_starts(samples: int) -> list[int]:
    """First mel frame of each window over `samples` samples; at least one."""
    frames = -(-(samples + 1) // _HOP)
    starts = list(range(0, max(1, frames - _FRAMES + _STEP + 1), _STEP))
    covered = (samples - starts[-1] * _HOP) / (_FRAMES * _HOP)
    return starts[:-1] if covered < _COVERAGE and len(starts) > 1 else starts
