// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep {

/// What an Error is about, as far as the place that throws it knows. The rank that throws is in the text only.
struct ErrorDetails {
  /// Ranks that are lost, missing, late or different, as numbered in `group`; in the run if `group` is empty.
  std::vector<int> ranks = {};
  std::string group = {};           ///< name of the process group, e.g. "default"
  std::string call = {};            ///< e.g. "all_reduce #12 of Float[1000] at train.cpp:40"
  std::string host = {};            ///< name or address of the host of ranks.front(), or of the server
  std::filesystem::path file = {};  ///< file or folder that cannot be read, written or used
};

/// Base class of all exceptions of Lockstep. The message names the event, the rank, the object and a remedy,
/// and if a call of the program is the cause, the line of that call: "(at train.cpp:42)". The members tell a
/// program what the error is about; each is empty where that is not known.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ErrorDetails details = {});

  /// The first of ranks().
  std::optional<int> rank() const;
  /// The ranks that the error is about, not the rank that throws it; as numbered in group().
  const std::vector<int>& ranks() const { return details().ranks; }
  /// The name of the process group whose call failed. Empty: ranks() are numbered as in the run.
  const std::string& group() const { return details().group; }
  /// The call that failed, with its number, element type, shape and line.
  const std::string& call() const { return details().call; }
  /// The host of rank(), or the host that does not answer.
  const std::string& host() const { return details().host; }
  /// The file or folder that cannot be read, written or used.
  const std::filesystem::path& file() const { return details().file; }
  /// All of these, to throw another Error about the same.
  const ErrorDetails& details() const { return *details_; }

 private:
  std::shared_ptr<const ErrorDetails> details_;
};

/// Wrong argument. Nothing was sent or changed.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// A deadline passed. `ranks()`: those that did not come. PyTorch: `DistStoreError`/`RuntimeError` with a
/// timeout text.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// Another rank died, closed its connection, or left the group. `ranks()`: the lost ones. PyTorch:
/// `DistNetworkError`.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree: parameters, shapes, options or the order of calls differ between them. `ranks()`: those that
/// differ from the lowest rank, or that ended the step.
class DesyncError : public Error {
 public:
  using Error::Error;
};

/// The ranks could not find or connect each other. `ranks()`: those that did not arrive; `host()`: the server
/// of the rendezvous; `file()`: the file of the rendezvous.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

/// A data set is missing, damaged, or has the wrong format. `file()`: its file or folder.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint could not be written, read or applied. `file()`: its file or folder; `ranks()`: the ranks that
/// could not read or write their parts.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A process could not be started or supervised. `ranks()`: the rank that could not be started, or that failed.
class LaunchError : public Error {
 public:
  using Error::Error;
};

/// The text of errno value `code`, as in "No such file or directory".
std::string errno_text(int code);

}  // namespace lockstep
