// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep {

/// The ranks, the group, the call, the host and the file of an Error; each is empty unless the place that throws
/// knows it. The rank that throws is in the text only.
struct ErrorDetails {
  /// Ranks that are lost, missing, late or different, as numbered in `group`; in the run if `group` is empty.
  std::vector<int> ranks = {};
  std::string group = {};           ///< name of the process group, e.g. "default"
  std::string call = {};            ///< e.g. "all_reduce #12 of Float[1000] at train.cpp:40"
  std::string host = {};            ///< name or address of the host of ranks.front(), or of the server
  std::filesystem::path file = {};  ///< file or folder that cannot be read, written or used
};

/// Base class of all exceptions of Lockstep, and the type of those without a class of their own, such as a call
/// on a closed group. The message names the event, the object and a remedy, the rank where ranks work together,
/// and the line of the program's call that is the cause: "(at train.cpp:42)". Members that are not known are empty.
/// Data: group(), call(), file().
/// Remedy: follow the text. PyTorch: `RuntimeError`.
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

/// An argument, an option or an environment variable is invalid. Nothing was sent or changed.
/// Data: group(), call(), file().
/// Remedy: fix the call; the text says what is allowed. PyTorch: `ValueError`, `TypeError`.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// A call did not finish within its time limit. Its outputs are unspecified.
/// Data: ranks() that did not come, host() of the first, group(), call(), file() that another process locks.
/// Remedy: end this rank, because the group's calls no longer match. PyTorch: `DistStoreError`, or
/// `RuntimeError` with a text about a timeout.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// Another rank died, closed its connection, or left the group. Outputs are unspecified.
/// Data: ranks() that are lost, host() of the first, group(), call().
/// Remedy: end this rank, or form the group again. The cause is the first error of another rank. PyTorch:
/// `DistNetworkError`.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// The modules, options or calls of the ranks differ, or another rank has abandoned the step. No data was mixed.
/// Data: ranks() that differ from rank 0, or that have abandoned the step, host() of the first, group(), call().
/// Remedy: do the same on every rank. PyTorch: `RuntimeError`.
class DesyncError : public Error {
 public:
  using Error::Error;
};

/// The ranks did not find or connect each other: a partial or contradictory environment, a port in use, another
/// program at MASTER_PORT, ranks that never arrived. No group exists.
/// Data: ranks() that did not arrive, host() and file() where they should have met, group().
/// Remedy: fix the launch, and start again. PyTorch: `DistNetworkError`, `DistStoreError`.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

/// A dataset is missing, truncated, damaged, or of the wrong kind. Nothing was changed.
/// Data: file() or folder.
/// Remedy: repair or download the file. PyTorch: `RuntimeError`, `FileNotFoundError`.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint is damaged, contains more than plain data, does not fit the module or optimizer, or cannot be
/// written. A module changes completely or not at all; an existing file stays.
/// Data: file() or folder, ranks() that could not read or write their part, group().
/// Remedy: load an older checkpoint, or one that fits. PyTorch: `RuntimeError`, `UnpicklingError`,
/// `CheckpointException`.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A process could not be started or supervised. All ranks are stopped.
/// Data: ranks() that could not be started.
/// Remedy: follow the text, which names a limit of the system or a program.
class LaunchError : public Error {
 public:
  using Error::Error;
};

/// The text of errno value `code`, as in "No such file or directory".
std::string errno_text(int code);

/// The exit code of a program that a signal has interrupted, that has saved a checkpoint, and that continues when it is
/// started again: 75, EX_TEMPFAIL of sysexits.h. `lockstep run` does not take it for a failure: it restarts and replaces
/// no rank, and ends with this code too once all ranks have ended. Not in PyTorch.
inline constexpr int kExitInterrupted = 75;

}  // namespace lockstep
