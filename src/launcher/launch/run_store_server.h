// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/messages.h"

namespace lockstep::launch {

// Note [Store of a run on several hosts]
//
// With `--on-loss replace` any rank may be lost, rank 0 included, and the others still need the store. So the launcher of
// node 0 serves it: a map of keys to bytes for rendezvous::RemoteStore, the c10d::Store of the ranks. It lives as
// long as an attempt of the run; a launcher that ends takes all ranks with it anyway.
//
// A rank sends one request at a time and waits for its reply. Each is a line of words; texts are in hexadecimal digits
// after an x, so that none is empty. As rank 0's store in other runs, it asks nobody for a secret.

// What a rank asks. Which fields count depends on `kind`:
//
//   set          the key has `value`
//   compare_set  as c10d's compareSet() with `expected` and `value`; the reply has the value that the key has then
//   get          the reply has the value; missing if there is none
//   add          adds `number`; the reply has the sum
//   remove       the reply has 1 if there was the key, else 0
//   check        the reply has 1 if all keys are there, else 0
//   count        the reply has the number of keys
//   wait         the reply comes when all keys are there; missing if they are not after `number` milliseconds
struct StoreRequest {
  enum class Kind { set, compare_set, get, add, remove, check, count, wait };
  Kind kind = Kind::set;
  std::int64_t number = 0;
  std::string expected{};
  std::string value{};
  std::vector<std::string> keys{};
};

struct StoreReply {
  enum class Status { done, missing, no_number };  // no_number: the value of a key that add() is to change
  Status status = Status::done;
  std::int64_t number = 0;
  std::string value{};
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
  // Throws LaunchError if this process may not have a connection of each of so many ranks.
  static void check_descriptors(int ranks);
  void watch(std::vector<pollfd>& events) const;
  // To the end of the next wait; -1: nobody waits.
  std::chrono::milliseconds poll_timeout() const;
  void advance();

 private:
  struct Wait {
    StoreRequest request{};
    Deadline deadline{std::chrono::milliseconds(0)};
  };
  struct Client {
    LineConnection connection{};
    std::optional<Wait> wait{};
  };

  void accept_clients();
  void read(Client& client);
  void end_waits();
  StoreReply answer(const StoreRequest& request);
  bool has_all(const std::vector<std::string>& keys) const;

  std::chrono::milliseconds silence_limit_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::map<int, Client> clients_;  // by descriptor
  std::map<std::string, std::string> values_;
};

}  // namespace lockstep::launch
