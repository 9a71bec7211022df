// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/file_rendezvous.h"

#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/atomic_file.h"
#include "base/host.h"
#include "base/sockets.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto kPause = 10ms;

void write_whole(const std::string& path, const std::string& text) {
  try {
    AtomicFile file(path, {.sync = false});
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  } catch (const std::system_error& error) {
    // Rank 0 has just removed it as a file of an earlier run; the caller retries.
    const bool was_removed = error.code() == std::errc::no_such_file_or_directory;
    std::error_code ignored;
    if (was_removed && fs::is_directory(fs::path(path).parent_path(), ignored)) return;
    throw_error<RendezvousError>(ErrorDetails{.file = path}, "the rendezvous file {} cannot be written: {}",
                                 path, error.code().message());
  }
}

std::optional<std::string> read_whole(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Addresses under which other hosts may reach this one.
std::vector<std::string> public_addresses() {
  std::vector<std::string> addresses;
  for (const auto& interface : network_interfaces()) {
    for (const auto& address : interface.addresses) {
      const bool is_ipv4 = address.find(':') == std::string::npos;
      if (interface.up && !interface.loopback && is_ipv4) addresses.push_back(address);
    }
  }
  return addresses;
}

// Whether `ending` is one of a file that this class writes.
bool is_rendezvous_file(const std::string& ending) {
  if (ending == ".run") return true;
  const auto digits = ending.find_first_not_of("0123456789", 5);
  return ending.starts_with(".rank") && ending.size() > 5 && digits == std::string::npos;
}

}  // namespace

FileRendezvous::FileRendezvous(std::string path, int rank, int world_size)
    : path_(std::move(path)), rank_(rank), world_size_(world_size), ticket_(random_hex(3)) {
  for (int other = 0; other < world_size; ++other) never_seen_.insert(other);
  const auto folder = fs::path(path_).parent_path();
  std::error_code code;
  if (!fs::is_directory(folder, code)) {
    throw_error<RendezvousError>(ErrorDetails{.file = folder},
                                 "the folder {} of the rendezvous file does not exist{}{}", folder.string(),
                                 code ? ": " : "", code ? code.message() : "");
  }
  if (rank_ != 0) return;
  remove_leftovers();
}

// Earlier runs may have had more ranks.
void FileRendezvous::remove_leftovers() const {
  const auto name = fs::path(path_).filename().string();
  std::error_code code;
  const auto folder = fs::path(path_).parent_path();
  for (auto entry = fs::directory_iterator(folder, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    const auto other = entry->path().filename().string();
    if (!other.starts_with(name) || !is_rendezvous_file(other.substr(name.size()))) continue;
    fs::remove(entry->path(), code);
    if (!code) continue;
    throw_error<RendezvousError>(ErrorDetails{.file = entry->path()},
                                 "{}, a file of an earlier run, cannot be removed: {}",
                                 entry->path().string(), code.message());
  }
  if (code) {
    throw_error<RendezvousError>(ErrorDetails{.file = folder},
                                 "the folder {} of the rendezvous file cannot be read: {}", folder.string(),
                                 code.message());
  }
}

FileRendezvous::~FileRendezvous() {
  std::error_code ignored;
  fs::remove(rank_path(rank_), ignored);
  if (rank_ == 0) fs::remove(run_path(), ignored);
}

std::string FileRendezvous::rank_path(int rank) const { return fmt::format("{}.rank{}", path_, rank); }
std::string FileRendezvous::run_path() const { return path_ + ".run"; }

void FileRendezvous::write_ticket() const {
  if (read_whole(rank_path(rank_)) != ticket_) write_whole(rank_path(rank_), ticket_);
}

bool FileRendezvous::all_there() {
  bool all = true;
  for (int rank = 0; rank < world_size_; ++rank) {
    std::error_code code;
    const bool is_there = fs::exists(rank_path(rank), code);
    if (code) {
      throw_error<RendezvousError>(ErrorDetails{.file = rank_path(rank)},
                                   "the rendezvous file {} cannot be read: {}", rank_path(rank),
                                   code.message());
    }
    if (is_there) never_seen_.erase(rank);
    all = all && is_there;
  }
  return all;
}

void FileRendezvous::publish(int port, const Deadline& deadline) {
  write_ticket();
  while (!all_there()) {
    if (deadline.expired()) give_up(deadline);
    std::this_thread::sleep_for(kPause);
  }
  std::vector<std::string> tickets;
  for (int rank = 0; rank < world_size_; ++rank) tickets.push_back(read_whole(rank_path(rank)).value_or(""));
  write_whole(run_path(), fmt::format("{}\n{}\n{}\n{}\n", host_identity(), port, fmt::join(tickets, " "),
                                      fmt::join(public_addresses(), " ")));
}

Endpoint FileRendezvous::find(const Deadline& deadline) {
  while (true) {
    write_ticket();
    if (const auto server = server_of_this_run()) return *server;
    all_there();
    if (deadline.expired()) give_up(deadline);
    std::this_thread::sleep_for(kPause);
  }
}

void FileRendezvous::give_up(const Deadline& deadline) const {
  throw_error<RendezvousError>(
      Reporter{rank_, world_size_},
      ErrorDetails{.ranks = {never_seen_.begin(), never_seen_.end()}, .file = path_},
      "the ranks did not meet at {} within {} ms; missing: {}. Were all ranks started, with the same path?",
      path_, deadline.timeout().count(),
      never_seen_.empty() ? "none, but some gave up early" : fmt::format("{}", fmt::join(never_seen_, ", ")));
}

std::optional<Endpoint> FileRendezvous::server_of_this_run() const {
  std::istringstream run(read_whole(run_path()).value_or(""));
  std::string host;
  std::string port;
  std::string tickets;
  if (!std::getline(run, host) || !std::getline(run, port) || !std::getline(run, tickets))
    return std::nullopt;
  if (tickets.find(ticket_) == std::string::npos) return std::nullopt;
  std::string address;
  run >> address;
  if (host == host_identity() || address.empty()) address = "127.0.0.1";
  return Endpoint{address, std::stoi(port)};
}

}  // namespace lockstep::rendezvous
