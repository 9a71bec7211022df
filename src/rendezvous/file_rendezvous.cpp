// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/file_rendezvous.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/host.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto kPause = 10ms;

std::string random_ticket() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}", source(), source(), source());
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";  // a fixed name, so that killed runs do not accumulate files
  {
    std::ofstream file(temporary);
    file << text;
    if (!file.flush()) {
      throw RendezvousError(
          fmt::format("the rendezvous file {} cannot be written: {}", temporary, errno_text(errno)));
    }
  }
  std::error_code code;
  fs::rename(temporary, path, code);
  // Rank 0 has just removed it as a file of an earlier run; the caller retries.
  if (code && code != std::errc::no_such_file_or_directory) {
    throw RendezvousError(fmt::format("the rendezvous file {} cannot be written: {}", path, code.message()));
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
  ifaddrs* list = nullptr;
  ::getifaddrs(&list);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const auto* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::array<char, NI_MAXHOST> text{};
    ::getnameinfo(at->ifa_addr, sizeof(sockaddr_in), text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    addresses.emplace_back(text.data());
  }
  return addresses;
}

// Whether `ending` is one of a file that this class writes.
bool is_rendezvous_file(std::string ending) {
  if (ending.ends_with(".tmp")) ending.resize(ending.size() - 4);
  if (ending == ".run") return true;
  const auto digits = ending.find_first_not_of("0123456789", 5);
  return ending.starts_with(".rank") && ending.size() > 5 && digits == std::string::npos;
}

}  // namespace

FileRendezvous::FileRendezvous(std::string path, int rank, int world_size)
    : path_(std::move(path)),
      rank_(rank),
      world_size_(world_size),
      ticket_(random_ticket()),
      seen_(static_cast<std::size_t>(world_size)) {
  const auto folder = fs::path(path_).parent_path();
  if (!fs::is_directory(folder)) {
    throw RendezvousError(
        fmt::format("the folder {} of the rendezvous file does not exist", folder.string()));
  }
  if (rank_ != 0) return;
  remove_leftovers();
}

// Earlier runs may have had more ranks.
void FileRendezvous::remove_leftovers() const {
  const auto name = fs::path(path_).filename().string();
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(fs::path(path_).parent_path())) {
    const auto other = entry.path().filename().string();
    if (!other.starts_with(name) || !is_rendezvous_file(other.substr(name.size()))) continue;
    fs::remove(entry.path(), code);
    if (!code) continue;
    throw RendezvousError(fmt::format("{}, a file of an earlier run, cannot be removed: {}",
                                      entry.path().string(), code.message()));
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

std::vector<int> FileRendezvous::missing() {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (fs::exists(rank_path(rank))) {
      seen_[static_cast<std::size_t>(rank)] = true;
    } else {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<int> FileRendezvous::never_seen() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!seen_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

void FileRendezvous::announce(int port, const Deadline& deadline) {
  write_ticket();
  while (!missing().empty()) {
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
    missing();
    if (deadline.expired()) give_up(deadline);
    std::this_thread::sleep_for(kPause);
  }
}

void FileRendezvous::give_up(const Deadline& deadline) const {
  const auto absent = never_seen();
  throw RendezvousError(fmt::format(
      "rank {} of {}: the ranks did not meet at {} within {} ms; missing: {}. Were all ranks started, with "
      "the "
      "same path?",
      rank_, world_size_, path_, deadline.timeout().count(),
      absent.empty() ? "none, but some gave up early" : fmt::format("{}", fmt::join(absent, ", "))));
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
