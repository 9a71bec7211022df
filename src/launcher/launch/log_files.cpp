// SPDX-License-Identifier: BSD-3-Clause
#include "launch/log_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <span>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/throw_error.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

// More than any traceback; bounds the launcher's memory.
constexpr std::streamsize kMaxRecorded = std::streamsize{1024} * 1024;
constexpr std::size_t kMaxShown = std::size_t{16} * 1024;

// Without slashes.
std::string file_name_of(std::string run_id) {
  std::ranges::replace(run_id, '/', '_');
  return run_id;
}

[[noreturn]] void refuse_log(const fs::path& path, int code) {
  throw_error<LaunchError>(
      "the log file or folder {} cannot be created: {}; set --log-dir to a folder that this user can write to",
      path.string(), errno_text(code));
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(kMaxRecorded), '\0');
  file.read(text.data(), kMaxRecorded);
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

}  // namespace

void make_log_folder(const fs::path& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (code) refuse_log(path, code.value());
}

LogFolder::LogFolder(const OutputOptions& options, std::string run_id)
    : base_(options.log_dir),
      run_id_(file_name_of(std::move(run_id))),
      wanted_(!options.log_dir.empty() || options.redirects.any() || options.tee.any() ||
              !options.duplicate_stdout_filters.empty() || !options.duplicate_stderr_filters.empty()) {}

void LogFolder::make_run_folder() {
  std::error_code code;
  const fs::path base = base_.empty() ? fs::temp_directory_path(code) : fs::path(base_);
  if (code) {
    throw_error<LaunchError>(
        "the folder for temporary files, {}, cannot be used for logs: {}; set --log-dir or TMPDIR",
        Env().get("TMPDIR").value_or("/tmp"), code.message());
  }
  make_log_folder(base);
  std::string name =
      (base / fmt::format("{}_XXXXXX", base_.empty() ? "lockstep_" + run_id_ : run_id_)).string();
  if (::mkdtemp(name.data()) == nullptr) refuse_log(name, errno);
  run_ = name;
}

fs::path LogFolder::begin_attempt(int restarts) {
  if (run_.empty()) make_run_folder();
  auto folder = run_ / fmt::format("attempt_{}", restarts);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  make_log_folder(folder);
  return folder;
}

ErrorRecord::ErrorRecord() : memory_(::memfd_create("lockstep-error", MFD_CLOEXEC)) {
  if (!memory_) {
    throw_error<LaunchError>("memory for the errors of ranks could not be created: {}; or set --log-dir",
                             call_error_text("memfd_create", errno));
  }
  path_ = fmt::format("/proc/{}/fd/{}", ::getpid(), memory_.get());
}

std::string ErrorRecord::message() const {
  const auto json = nlohmann::json::parse(text_of(path_), nullptr, false);
  if (!json.is_object() || !json.contains("message")) return "";
  const auto& message = json["message"];
  const auto& text = message.is_object() && message.contains("message") ? message["message"] : message;
  return text.is_string() ? text.get<std::string>().substr(0, kMaxShown) : "";
}

UniqueFd open_log(const fs::path& path) {
  make_log_folder(path.parent_path());
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!file) refuse_log(path, errno);
  return file;
}

void remove_error_file(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(fs::symlink_status(path, ignored))) fs::remove(path, ignored);
}

void write_error_file(const fs::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace lockstep::launch
