// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/env.h"
#include "launch/hosts.h"
#include "launch/options.h"

namespace lockstep::cli {

// The command line of `lockstep run`, not yet checked. Names and defaults are torchrun's.
struct RunArguments {
  std::string nproc_per_node = "1";
  std::string nnodes = "1:1";
  std::optional<int> node_rank{};
  std::optional<std::string> master_addr{};
  std::optional<int> master_port{};
  std::string local_addr{};
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint{};
  std::string rdzv_id = "none";
  std::string rdzv_conf{};
  std::string secret_file{};
  std::string hosts{};
  std::string ssh{};
  std::string lockstep{};
  std::vector<std::string> exported{};
  std::optional<int> host_index{};  // in `hosts`: this launcher was started on that host
  std::string adopt{};              // this launcher takes the place of a lost node, see launch/adopted_node.h
  bool standalone = false;
  int max_restarts = 0;
  std::string on_loss = "restart";
  int min_ranks = 1;
  int spares = 0;
  std::optional<double> progress_timeout{};
  std::optional<double> slow_factor{};
  int slow_steps = 20;
  std::string on_slow = "report";
  double monitor_interval = 0.1;
  std::string start_method = "spawn";
  std::string event_log_handler = "null";
  std::string logs_specs = "default";
  std::string numa_binding{};
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::string role = "default";
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  bool use_env = false;
  bool pass_local_rank = false;
  bool virtual_local_rank = false;
  std::string log_dir{};
  std::string redirects = "0";
  std::string tee = "0";
  std::string log_line_prefix_template{};
  std::string local_ranks_filter{};
  std::string duplicate_stdout_filters{};
  std::string duplicate_stderr_filters{};
  std::string error_file{};
  std::string report{};
  std::optional<int> metrics_port{};
  std::optional<std::string> metrics_bind{};
  std::string metrics_token_file{};
  std::string bind = "none";
  std::string memory_allocator = "default";
  bool plain_lines = false;
  bool verbose = false;
  double grace_period = 5;
  std::vector<std::string> command{};
};

// Sets the options of the rendezvous: nodes, master_addr, master_port and run_id.
void set_rendezvous(const RunArguments& arguments, const Env& env, launch::LaunchOptions& options);

// With --hosts and without a host_index. `checked`: launch_options() of these arguments. `words`: the whole
// command line of `lockstep`, from "run" on.
launch::HostsOptions hosts_options(const RunArguments& arguments, const launch::LaunchOptions& checked,
                                   const std::vector<std::string>& words, const Env& env);

}  // namespace lockstep::cli
