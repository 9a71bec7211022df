// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/coordinator.h"
#include "launch/messages.h"
#include "launch/options.h"

namespace lockstep::launch {

// One node's connection to the Coordinator of the run. Nothing blocks: the owner polls the descriptors of
// watch() for at most poll_timeout(), then calls advance() and receive().
class CoordinatorClient {
 public:
  CoordinatorClient() = default;
  virtual ~CoordinatorClient() = default;
  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  virtual void send(const FromNode& message) = 0;
  virtual void watch(std::vector<pollfd>& events) const = 0;
  virtual std::optional<std::chrono::milliseconds> poll_timeout() const = 0;
  virtual void advance() = 0;
  // Throws LaunchError when the connection is lost and all messages have been received.
  virtual std::optional<ToNode> receive() = 0;
  // This node's address for the other nodes.
  virtual std::string address() const = 0;
};

// A run of one node has its Coordinator in the same process.
class LocalCoordinatorClient : public CoordinatorClient {
 public:
  LocalCoordinatorClient(const CoordinatorOptions& options, const NodeInfo& info, std::string address);

  void send(const FromNode& message) override;
  void watch(std::vector<pollfd>& /*events*/) const override {}
  std::optional<std::chrono::milliseconds> poll_timeout() const override { return std::nullopt; }
  void advance() override {}
  std::optional<ToNode> receive() override;
  std::string address() const override { return address_; }

 private:
  void fetch();

  Coordinator coordinator_;
  std::string address_;
  std::deque<ToNode> inbox_;
};

// Connects to a CoordinatorServer, which may start later.
class TcpCoordinatorClient : public CoordinatorClient {
 public:
  TcpCoordinatorClient(const NodesOptions& nodes, Hello hello, std::string local_addr);

  void send(const FromNode& message) override;
  void watch(std::vector<pollfd>& events) const override;
  std::optional<std::chrono::milliseconds> poll_timeout() const override;
  void advance() override;
  std::optional<ToNode> receive() override;
  std::string address() const override;

 private:
  void begin_attempt();
  void finish_attempt();
  void try_again(const std::string& reason);
  bool was_dropped() const;
  void start_over();
  void check_welcome() const;
  void answer(const Challenge& challenge);
  void check_proof(const ToNode& first) const;

  NodesOptions nodes_;
  Hello hello_;
  Challenges challenges_{};
  std::string local_addr_;
  Deadline deadline_;  // for connecting
  Deadline limit_{
      std::chrono::milliseconds(0)};  // of the pause, the connection attempt, or the wait for Welcome
  std::size_t attempts_ = 0;
  UniqueFd connecting_;
  bool connected_ = false;
  bool welcome_ = false;
  LineConnection connection_;
};

// For a launcher. `is_host`: the coordinator of the run is in it.
std::unique_ptr<CoordinatorClient> make_client(const LaunchOptions& options, bool is_host);

}  // namespace lockstep::launch
