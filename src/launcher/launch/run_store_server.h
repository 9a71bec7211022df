// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <poll.h>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/messages.h"
#include "launch/secret.h"

namespace lockstep::launch {

// Note [Store of a run on several hosts]
//
// With `--on-loss replace` any rank may be lost, rank 0 included, and the others still need the store. So the launcher of
// node 0 serves it: a map of keys to bytes for rendezvous::RemoteStore, the c10d::Store of the ranks. It lives as
// long as an attempt of the run; a launcher that ends takes all ranks with it anyway.
//
// A rank sends one request at a time and waits for its reply. Each is a line of words; texts are in hexadecimal digits
// after an x, so that none is empty. The first line of a connection is the token, which the launchers give to the ranks
// through the memory of the run (note [Memory of a run]); its reply is an empty one. Until then a stranger can send a short
// line and has a few seconds; what is no rank, or does not wait for replies, is dropped.

// What a rank asks. Which fields count depends on `kind`:
//
//   set          the key has `value`
//   compare_set  as c10d's compareSet() with `expected` and `value`; the reply has the value that the key has then
//   get          the reply has the value; missing if there is none
//   get_all      the reply has the values of all keys; missing if there is one without
//   add          adds `number`; the reply has the sum
//   remove       the reply has 1 if there was the key, else 0
//   check        the reply has 1 if all keys are there, else 0
//   count        the reply has the number of keys
//   wait         the reply comes when all keys are there; missing if they are not after `number` milliseconds
struct StoreRequest {
  enum class Kind { set, compare_set, get, get_all, add, remove, check, count, wait };
  Kind kind = Kind::set;
  std::int64_t number = 0;
  std::string expected{};
  std::string value{};
  std::vector<std::string> keys{};
};

struct StoreReply {
  enum class Status { done, missing, no_number };  // no_number: add() cannot add to the value of the key
  Status status = Status::done;
  std::int64_t number = 0;
  std::vector<std::string> values{};

  std::string value() const { return values.empty() ? "" : values.front(); }
};

// One line each, without its newline. decode_... throw LaunchError for a malformed one.
std::string encode(const StoreRequest& request);
std::string encode(const StoreReply& reply);
StoreRequest decode_store_request(const std::string& line);
StoreReply decode_store_reply(const std::string& line);

// Nothing blocks: the owner polls the descriptors of watch() for at most poll_timeout(), then calls advance().
class RunStoreServer {
 public:
  // Listens on a free port of all addresses. `silence_limit`: as NodesOptions. Throws LaunchError if it cannot.
  explicit RunStoreServer(std::chrono::milliseconds silence_limit);

  std::uint16_t port() const { return port_; }
  // Random; another one in each attempt. Ranks show token_of().
  const std::string& token() const { return token_.text(); }
  // What the ranks of a node show in place of token(). `epoch`: of its NodeAssignment.
  static std::string token_of(const std::string& token, int node_rank, int epoch);
  // Drops the ranks of the node from epochs before, and refuses them from now on: another launcher takes its place.
  void fence(int node_rank, int epoch);
  // Throws LaunchError if this process may not have a connection of each of so many ranks.
  static void check_descriptors(int ranks);
  void watch(std::vector<pollfd>& events) const;
  // -1: until a descriptor is ready.
  std::chrono::milliseconds poll_timeout() const;
  // `events`: those of watch() after poll(); others are ignored.
  void advance(std::span<const pollfd> events);

 private:
  struct Wait {
    StoreRequest request{};
    Deadline deadline{std::chrono::milliseconds(0)};
  };
  struct Client {
    LineConnection connection{};
    bool is_rank = false;  // has shown the token of this node
    int node_rank = 0;
    int epoch = 0;
    Deadline limit{std::chrono::seconds(10)};  // for the token
    std::optional<Wait> wait{};
  };

  void accept_clients();
  bool drop_oldest_stranger();
  std::size_t strangers() const;
  void read(Client& client);
  void handle_line(Client& client, const std::string& line);
  void end_waits();
  bool admit(Client& client, const std::string& line) const;
  StoreReply answer(const StoreRequest& request);
  bool has_all(const std::vector<std::string>& keys) const;

  std::chrono::milliseconds silence_limit_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  Secret token_;
  Deadline accept_pause_{std::chrono::milliseconds(0)};
  std::map<int, Client> clients_;  // by descriptor
  std::map<int, int> epochs_;      // [node rank] the least one that is served; 0 for others
  std::map<std::string, std::string> values_;
};

}  // namespace lockstep::launch
