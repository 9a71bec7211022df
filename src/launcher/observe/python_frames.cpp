// SPDX-License-Identifier: BSD-3-Clause
#include "observe/python_frames.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "machine/command.h"

namespace lockstep::observe {
namespace {

using nlohmann::json;

constexpr const char* kProgram = "py-spy";
constexpr std::chrono::milliseconds kLimit{5'000};
constexpr std::size_t kMostOutput = std::size_t{8} << 20;  // bytes

// The interpreter is the program itself, or a library of it.
bool runs_python(int pid) {
  std::error_code unreadable;
  const auto program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), unreadable);
  if (program.filename().string().starts_with("python")) return true;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/libpython3") != std::string::npos) return true;
  }
  return false;
}

// Names come from another program, and the text may go to a terminal.
std::string without_control_characters(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char character) { return character < 0x20 || character == 0x7F; }, '?');
  return text;
}

PythonFrames unknown(int pid, const std::string& why) {
  return {.problem = fmt::format("Frames of Python in process {} are not known: {}", pid,
                                 without_control_characters(why))};
}

std::string frame_text(const json& frame) {
  const auto file = frame.at("filename").get<std::string>();
  return without_control_characters(fmt::format("Python: {} at {}:{}", frame.at("name").get<std::string>(),
                                                std::filesystem::path(file).filename().string(),
                                                frame.at("line").get<int>()));
}

}  // namespace

PythonFrames python_frames_from(const std::string& text) {
  PythonFrames found;
  try {
    for (const auto& thread : json::parse(text)) {
      if (thread.at("os_thread_id").is_null()) continue;  // py-spy does not know it
      auto& frames = found.threads[thread["os_thread_id"].get<int>()];
      for (const auto& frame : thread.at("frames")) frames.push_back(frame_text(frame));
    }
  } catch (const json::exception& error) {
    throw Error(fmt::format("py-spy has printed a text that is not a list of threads: {}", error.what()));
  }
  return found;
}

PythonFrames python_frames_of(int pid, const Deadline& deadline) {
  if (!runs_python(pid)) return {};
  if (!machine::is_on_path(kProgram))
    return {.problem = "Frames of Python are not shown, because PATH has no py-spy: pip install py-spy"};
  if (deadline.expired()) return unknown(pid, "the time for all processes is over");
  const auto result =
      machine::run_command({kProgram, "dump", "--nonblocking", "--json", "--pid", std::to_string(pid)},
                           std::min(kLimit, deadline.remaining()), {}, kMostOutput);
  if (!result.succeeded()) return unknown(pid, result.problem);
  try {
    return python_frames_from(result.out);
  } catch (const Error& error) {
    return unknown(pid, error.what());
  }
}

}  // namespace lockstep::observe
