// SPDX-License-Identifier: BSD-3-Clause
#include "observe/recorder_files.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <map>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/rank_progress.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "base/unique_fd.h"
#include "observe/join_hosts.h"
#include "observe/private_file.h"

namespace lockstep::observe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kOneSignal = 2'000'000'000;  // nanoseconds
constexpr const char* kTorchVersion = "2.10";       // of PyTorch's format

[[noreturn]] void fail(const fs::path& file) {
  throw_error<Error>("recorder files: {} cannot be written: {}", file.string(), errno_text(errno));
}

void write_file(const fs::path& file, const std::string& bytes) {
  try {
    write_private_file(file, bytes);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    fail(file);
  }
}

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int byte = 0; byte < bytes; ++byte) text += static_cast<char>(value >> 8 * byte & 0xFF);
  return text;
}

void append(std::string& pickle, const json& value) {
  switch (value.type()) {
    case json::value_t::object:
      pickle += "}(";
      for (const auto& [key, item] : value.items()) {
        append(pickle, key);
        append(pickle, item);
      }
      pickle += 'u';
      break;
    case json::value_t::array:
      pickle += "](";
      for (const auto& item : value) append(pickle, item);
      pickle += 'e';
      break;
    case json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      pickle += 'X' + little_endian(text.size(), 4) + text;
      break;
    }
    case json::value_t::boolean:
      pickle += value.get<bool>() ? '\x88' : '\x89';
      break;
    case json::value_t::number_float: {
      auto bytes = little_endian(std::bit_cast<std::uint64_t>(value.get<double>()), 8);
      std::ranges::reverse(bytes);
      pickle += 'G' + bytes;
      break;
    }
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      pickle += "\x8a\x08" + little_endian(value.get<std::uint64_t>(), 8);
      break;
    default:
      pickle += 'N';
      break;
  }
}

// How PyTorch's backends name a collective and list its tensors. Shapes that ranks need not share are left out, since
// the analyzer takes a difference for an error.
struct TorchCall {
  std::string name;
  json inputs;
  json outputs;
};

json times(const json& shape, int count) { return json(static_cast<std::size_t>(count), shape); }

json longer(const Call& call, int count) {
  auto shape = call.shape;
  shape.empty() ? shape.push_back(count) : void(shape.front() *= count);
  return json::array({shape});
}

TorchCall torch_call(const Call& call, int size) {
  const json shape = call.shape;
  const json one = json::array({shape});
  const json unknown = json::array({json::array()});
  if (call.name == "all_gather_into_tensor") return {"_all_gather_base", one, longer(call, size)};
  if (call.name == "reduce_scatter_tensor") return {"_reduce_scatter_base", longer(call, size), one};
  if (call.name == "reduce_scatter") return {call.name, times(shape, size), one};
  if (call.name == "all_gather") return {call.name, unknown, times(json::array(), size)};
  if (call.name == "gather" || call.name == "scatter" || call.name.starts_with("all_to_all"))
    return {call.name, unknown, unknown};
  return {call.name, one, one};
}

std::string state_of(const Membership& member, const Call& call) {
  if (call.number <= member.completed) return "completed";
  return call.number == member.awaited ? "started" : "scheduled";
}

json frames_of(const Call& call) {
  const auto name = call.contents.empty() ? call.name : fmt::format("{} ({})", call.name, call.contents);
  return json::array({{{"name", name}, {"filename", call.file}, {"line", call.line}}});
}

json entry_of(const Membership& member, const Call& call, std::int64_t to_wall) {
  const auto [name, inputs, outputs] = torch_call(call, member.size);
  const json dtypes = call.dtype.empty() ? json::array() : json::array({call.dtype});
  const auto state = state_of(member, call);
  return {{"pg_id", 0},
          {"process_group", {member.group, "undefined"}},
          {"collective_seq_id", call.sequence},
          {"p2p_seq_id", 0},
          {"op_id", call.number},
          {"profiling_name", "c10d:" + name},
          {"time_created_ns", call.issued_at + to_wall},
          {"input_sizes", inputs},
          {"input_dtypes", dtypes},
          {"output_sizes", outputs},
          {"output_dtypes", dtypes},
          {"state", state},
          {"time_discovered_started_ns", nullptr},
          {"time_discovered_completed_ns", nullptr},
          {"retired", state == "completed"},
          {"timeout_ms", 0},
          {"is_p2p", false},
          {"frames", frames_of(call)}};
}

// What the files of all ranks have to agree on.
struct Group {
  std::vector<int> ranks;   // their numbers in the job
  std::uint64_t first = 0;  // the first collective that all recorders still have
};

std::map<std::string, Group> groups_of(const Run& run) {
  std::map<std::string, Group> groups;
  for (const auto& rank : run.ranks) {
    for (const auto& member : rank.groups) {
      auto& group = groups[member.group];
      group.ranks.push_back(rank.rank);
      const auto oldest =
          std::ranges::find_if(member.calls, [](const Call& call) { return !call.is_message(); });
      if (oldest != member.calls.end()) group.first = std::max(group.first, oldest->sequence);
    }
  }
  return groups;
}

std::int64_t steady_to_wall() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall - steady).count();
}

// Without messages: PyTorch's analyzer expects all ranks of the group in each.
json torch_dump(const Rank& rank, const std::map<std::string, Group>& groups) {
  const auto to_wall = steady_to_wall();
  json config = json::object();
  std::vector<json> entries;
  for (const auto& member : rank.groups) {
    const auto& group = groups.at(member.group);
    config[member.group] = {{"name", member.group},
                            {"desc", "undefined"},
                            {"ranks", fmt::format("[{}]", fmt::join(group.ranks, ", "))}};
    for (const auto& call : member.calls) {
      if (!call.is_message() && call.sequence >= group.first)
        entries.push_back(entry_of(member, call, to_wall));
    }
  }
  std::ranges::stable_sort(entries, std::less(),
                           [](const json& entry) { return entry.at("time_created_ns").get<std::int64_t>(); });
  for (std::size_t i = 0; i < entries.size(); ++i) entries[i]["record_id"] = i;
  return {{"version", kTorchVersion},
          {"pg_config", std::move(config)},
          {"pg_status", json::object()},
          {"entries", entries}};
}

fs::path run_file(const Run& run, const fs::path& folder) {
  return folder / fmt::format("{}.{}.json", run.host, run.ranks.empty() ? 0 : run.ranks.front().rank);
}

Run read_run_file(const fs::path& file) {
  std::ifstream stream(file);
  try {
    return run_from_json(json::parse(stream, nullptr, false));
  } catch (const Error& error) {
    throw_error<Error>("{}: {}", file.string(), error.what());
  }
}

// Ranks that wait in one call fail within a moment of each other. In containers a later run may have the same pids.
constexpr std::chrono::minutes kOneFailure{1};

// Whether this process is the first to write the files of a failure of the run.
bool claim(const Run& run, const fs::path& folder) {
  std::string pids;
  for (const auto& rank : run.ranks) pids += fmt::format("{} ", rank.pid);
  const auto file = folder / fmt::format(".{}.{:x}.claim", run_file(run, "").stem().string(),
                                         std::hash<std::string>{}(pids));
  if (UniqueFd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR))) return true;
  if (errno != EEXIST) fail(file);
  const auto now = fs::file_time_type::clock::now();
  if (now - fs::last_write_time(file) < kOneFailure) return false;
  fs::last_write_time(file, now);
  return true;
}

void make_folder(const fs::path& folder) {
  try {
    make_folders(folder, false);
  } catch (const std::system_error& error) {
    throw_error<Error>("recorder files: the folder {} cannot be made: {}", folder.string(),
                       errno_text(error.code().value()));
  }
}

}  // namespace

std::string pickle_of(const json& value) {
  std::string pickle = "\x80\x02";
  append(pickle, value);
  return pickle + '.';
}

std::vector<fs::path> write_recorder_files(const Run& run, const fs::path& folder) {
  make_folder(folder);
  std::vector<fs::path> files;
  const auto groups = groups_of(run);
  for (const auto& rank : run.ranks) {
    files.push_back(folder / fmt::format("rank_{}", rank.rank));
    write_file(files.back(), pickle_of(torch_dump(rank, groups)));
  }
  files.push_back(run_file(run, folder));
  write_file(files.back(), to_json(run).dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  return files;
}

void keep_recorder_files(const Run& run, const fs::path& folder) {
  make_folder(folder);
  if (claim(run, folder)) write_recorder_files(run, folder);
}

bool replace_recorder_files(const Run& run, const fs::path& folder) {
  make_folder(folder);
  const auto file = folder / fmt::format(".{}.signal", run_file(run, "").stem().string());
  const UniqueFd mark(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!mark) fail(file);
  if (::flock(mark.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    fail(file);
  }
  std::int64_t written_at = 0;  // on the steady clock, which the processes of a host share
  const bool is_known = ::pread(mark.get(), &written_at, sizeof(written_at), 0) == sizeof(written_at);
  const auto age = steady_now() - written_at;
  if (is_known && age >= 0 && age < kOneSignal) return false;
  write_recorder_files(run, folder);
  written_at = steady_now();
  if (::pwrite(mark.get(), &written_at, sizeof(written_at), 0) != sizeof(written_at)) fail(file);
  return true;
}

Run read_recorder_files(const fs::path& folder) {
  std::error_code unreadable;
  fs::directory_iterator entries(folder, unreadable);
  if (unreadable) throw_error<Error>("{}: {}", folder.string(), errno_text(unreadable.value()));
  std::vector<fs::path> files;
  for (const auto& entry : entries) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  if (files.empty()) {
    throw_error<Error>("{} has no file that `lockstep recorder dump` wrote (<host>.<rank>.json)",
                       folder.string());
  }
  std::ranges::sort(files);
  std::vector<Run> runs;
  for (const auto& file : files) runs.push_back(read_run_file(file));
  return runs.size() == 1 ? std::move(runs.front()) : join_hosts(std::move(runs));
}

}  // namespace lockstep::observe
