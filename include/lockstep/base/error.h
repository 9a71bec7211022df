// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

/// Root of every exception that Lockstep throws. The message says what happened, on which rank, to what,
/// and what to do about it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller passed something that cannot work; nothing was sent and nothing was changed.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// A deadline passed. PyTorch: `DistStoreError`/`RuntimeError` with a timeout text.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// Another rank died or closed its connection. PyTorch: `DistNetworkError`.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree: parameters, shapes, options or the order of calls differ between them.
class DesyncError : public Error {
 public:
  using Error::Error;
};

/// The ranks could not find each other.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

/// A data set is missing, damaged, or not what it should be.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint could not be written, read or applied.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A process could not be started or watched.
class LaunchError : public Error {
 public:
  using Error::Error;
};

/// The text of errno value `code`, as in "No such file or directory".
std::string errno_text(int code);

}  // namespace lockstep
