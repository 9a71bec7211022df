// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

/// Base class of all exceptions of Lockstep. The message names the event, the rank, the object and a remedy,
/// and if a call of the program is the cause, the line of that call: "(at train.cpp:42)".
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
};

/// Wrong argument. Nothing was sent or changed.
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

/// The ranks could not find or connect each other.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

/// A data set is missing, damaged, or has the wrong format.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint could not be written, read or applied.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A process could not be started or supervised.
class LaunchError : public Error {
 public:
  using Error::Error;
};

/// The text of errno value `code`, as in "No such file or directory".
std::string errno_text(int code);

}  // namespace lockstep
