// SPDX-License-Identifier: BSD-3-Clause
#include "run_arguments.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <unistd.h>

#include <lockstep/base/log.h>

#include "base/host.h"
#include "base/slurm.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "machine/command.h"

namespace lockstep::cli {
namespace {

constexpr int kStaticPort = 29500;  // torchrun's
constexpr int kC10dPort = 29400;

using Settings = std::map<std::string, std::string>;

struct NodeCounts {
  int min = 1;
  int max = 1;
};

NodeCounts parse_nnodes(const std::string& text) {
  const auto colon = text.find(':');
  const auto min = parse_number<int>(std::string_view(text).substr(0, colon));
  const auto max =
      colon == std::string::npos ? min : parse_number<int>(std::string_view(text).substr(colon + 1));
  if (min && max && *min >= 1 && *max >= *min) return {.min = *min, .max = *max};
  throw_error<ArgumentError>("--nnodes {}: use a whole number above 0, or MIN:MAX as in 2:4", text);
}

std::uint16_t checked_port(int port, const char* option) {
  if (port >= 1 && port <= 65535) return static_cast<std::uint16_t>(port);
  throw_error<ArgumentError>("{} {}: a port must be in 1 .. 65535", option, port);
}

std::string without_brackets(std::string host) {
  if (host.starts_with('[') && host.ends_with(']')) return host.substr(1, host.size() - 2);
  return host;
}

// host, host:port, [v6], [v6]:port
launch::Endpoint parse_endpoint(const std::string& text, int default_port) {
  const auto colon = text.rfind(':');
  const bool v6_alone = text.ends_with(']') || text.find(':') != colon;
  const bool has_port =
      colon != std::string::npos && !(v6_alone && !text.starts_with('[')) && !text.ends_with(']');
  launch::Endpoint endpoint{.host = without_brackets(has_port ? text.substr(0, colon) : text)};
  const auto port = has_port ? parse_number<int>(std::string_view(text).substr(colon + 1)) : default_port;
  if (!port || endpoint.host.empty()) {
    throw_error<ArgumentError>("--rdzv-endpoint {}: use HOST:PORT", text);
  }
  endpoint.port = checked_port(*port, "--rdzv-endpoint's port");
  return endpoint;
}

Settings parse_settings(const std::string& text) {
  Settings settings;
  std::istringstream pairs(text);
  for (std::string pair; std::getline(pairs, pair, ',');) {
    const auto equals = pair.find('=');
    std::string name = pair.substr(0, equals);
    std::erase(name, ' ');
    if (equals == std::string::npos || name.empty() || equals + 1 == pair.size()) {
      throw_error<ArgumentError>("--rdzv-conf {}: use settings as in join_timeout=60,is_host=0", text);
    }
    settings[name] = pair.substr(equals + 1);
  }
  return settings;
}

// Removes each setting that it reads; settings that are left are unknown.
class SettingsReader {
 public:
  explicit SettingsReader(Settings settings) : settings_(std::move(settings)) {}

  std::optional<double> number(const std::string& name) {
    const auto text = take(name);
    if (!text) return std::nullopt;
    const auto value = parse_number<double>(*text);
    constexpr double max = 1e7;
    if (value && *value > 0 && *value <= max) return value;
    throw_error<ArgumentError>("--rdzv-conf {}={}: use a number above 0", name, *text);
  }

  std::optional<bool> truth(const std::string& name) {
    const auto text = take(name);
    if (!text) return std::nullopt;
    for (const char* yes : {"1", "true", "True", "t", "yes", "y"}) {
      if (*text == yes) return true;
    }
    for (const char* no : {"0", "false", "False", "f", "no", "n"}) {
      if (*text == no) return false;
    }
    throw_error<ArgumentError>("--rdzv-conf {}={}: use true or false", name, *text);
  }

  std::optional<std::string> take(const std::string& name) {
    auto found = settings_.extract(name);
    return found.empty() ? std::nullopt : std::optional(std::move(found.mapped()));
  }

  void refuse_rest() const {
    if (settings_.empty()) return;
    throw_error<ArgumentError>(
        "--rdzv-conf: {} is not supported; join_timeout, timeout, last_call_timeout, "
        "keep_alive_interval, keep_alive_max_attempt, is_host and store_type=tcp are",
        settings_.begin()->first);
  }

 private:
  Settings settings_;
};

std::chrono::milliseconds in_milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

void apply_settings(const std::string& text, launch::NodesOptions& nodes) {
  SettingsReader settings(parse_settings(text));
  if (const auto seconds = settings.number("timeout")) nodes.join_timeout = in_milliseconds(*seconds);
  if (const auto seconds = settings.number("join_timeout")) nodes.join_timeout = in_milliseconds(*seconds);
  if (const auto seconds = settings.number("last_call_timeout"))
    nodes.last_call_timeout = in_milliseconds(*seconds);
  const auto interval = settings.number("keep_alive_interval");
  const auto attempts = settings.number("keep_alive_max_attempt");
  if (interval || attempts)
    nodes.silence_limit = in_milliseconds(interval.value_or(5) * attempts.value_or(3));
  nodes.is_host = settings.truth("is_host");
  if (const auto store = settings.take("store_type"); store && *store != "tcp") {
    throw_error<ArgumentError>("--rdzv-conf store_type={}: only tcp is supported", *store);
  }
  settings.refuse_rest();
}

// As in torchrun, a run that finds its own port gets its own id.
bool has_own_port(const RunArguments& arguments, const NodeCounts& counts) {
  return counts.max == 1 && !arguments.master_port && arguments.rdzv_endpoint.empty() &&
         arguments.rdzv_backend == "static";
}

void warn_about_ignored(const RunArguments& arguments) {
  const bool ignored = arguments.node_rank.value_or(0) != 0 || arguments.master_addr ||
                       arguments.master_port || !arguments.rdzv_endpoint.empty();
  if (!ignored) return;
  log(LogLevel::warning,
      "--standalone ignores --node-rank, --master-addr, --master-port and --rdzv-endpoint: it means one node "
      "that finds its address and port");
}

void set_one_node(const RunArguments& arguments, launch::LaunchOptions& options) {
  launch::NodesOptions unused;
  apply_settings(arguments.rdzv_conf, unused);
  if (arguments.node_rank.value_or(0) != 0) {
    throw_error<ArgumentError>("--node-rank {}, but the run has one node: set --nnodes too",
                               *arguments.node_rank);
  }
  if (arguments.rdzv_backend == "static" && !arguments.rdzv_endpoint.empty()) {
    const auto endpoint = parse_endpoint(arguments.rdzv_endpoint, kStaticPort);
    options.master_addr = endpoint.host;
    options.master_port = endpoint.port;
    return;
  }
  if (arguments.master_addr) options.master_addr = without_brackets(*arguments.master_addr);
  if (arguments.master_port) options.master_port = checked_port(*arguments.master_port, "--master-port");
}

// Without --node-rank: the index of this pod in an indexed Job of Kubernetes, else 0.
int static_node_rank(const RunArguments& arguments, const Env& env) {
  if (arguments.node_rank) return *arguments.node_rank;
  const auto index = env.get("JOB_COMPLETION_INDEX");
  if (!index) return 0;
  const auto rank = parse_number<int>(*index);
  if (rank) return *rank;
  throw_error<ArgumentError>("JOB_COMPLETION_INDEX={} is not a number; set --node-rank", *index);
}

launch::NodesOptions several_nodes(const RunArguments& arguments, const NodeCounts& counts, const Env& env) {
  launch::NodesOptions nodes{.min_nodes = counts.min, .max_nodes = counts.max};
  apply_settings(arguments.rdzv_conf, nodes);
  if (arguments.rdzv_backend == "c10d") {
    nodes.endpoint = parse_endpoint(
        arguments.rdzv_endpoint.empty() ? std::string("localhost") : arguments.rdzv_endpoint, kC10dPort);
    return nodes;
  }
  nodes.node_rank = static_node_rank(arguments, env);
  if (nodes.is_host && *nodes.is_host != (*nodes.node_rank == 0)) {
    throw ArgumentError("--rdzv-conf is_host: with --node-rank, node 0 is the host; leave is_host out");
  }
  if (!arguments.rdzv_endpoint.empty()) {
    nodes.endpoint = parse_endpoint(arguments.rdzv_endpoint, kStaticPort);
  } else {
    nodes.endpoint = {.host = without_brackets(arguments.master_addr.value_or("127.0.0.1")),
                      .port = checked_port(arguments.master_port.value_or(kStaticPort), "--master-port")};
  }
  return nodes;
}

bool has_no_node_options(const RunArguments& arguments) {
  return arguments.nnodes == RunArguments{}.nnodes && !arguments.node_rank &&
         arguments.rdzv_endpoint.empty() && arguments.rdzv_backend == "static" && !arguments.standalone;
}

launch::NodesOptions nodes_of_step(const RunArguments& arguments, const SlurmNodes& step) {
  launch::NodesOptions nodes{.min_nodes = step.nnodes, .max_nodes = step.nnodes, .node_rank = step.node_rank};
  apply_settings(arguments.rdzv_conf, nodes);
  nodes.endpoint = {.host = without_brackets(arguments.master_addr.value_or(step.master_addr)),
                    .port = checked_port(arguments.master_port.value_or(step.port), "--master-port")};
  return nodes;
}

void check_backend(const std::string& backend) {
  if (backend == "static" || backend == "c10d") return;
  throw_error<ArgumentError>(
      "--rdzv-backend {} is not supported; use static (each node has its --node-rank) or c10d (nodes are "
      "numbered in the order in which they join)",
      backend);
}

// For the launcher on one host of --hosts. The secret is in the environment that it was given.
void set_node_of_hosts(const RunArguments& arguments, const Env& env, launch::LaunchOptions& options) {
  if (options.on_loss != launch::OnLoss::restart) {
    throw_error<ArgumentError>(
        "--on-loss {} does not support --hosts; leave one of them out{}", launch::text_of(options.on_loss),
        launch::replaces_ranks(options.on_loss) ? ", or start a launcher on each host with --nnodes" : "");
  }
  if (!has_no_node_options(arguments)) {
    throw ArgumentError(
        "--hosts says how many nodes there are and where they meet: it excludes --nnodes, --node-rank, "
        "--rdzv-backend, --rdzv-endpoint and --standalone; use --master-addr and --master-port");
  }
  const auto hosts = launch::parse_hosts(arguments.hosts);
  const int index = arguments.host_index.value_or(0);
  const auto& entry = hosts.at(static_cast<std::size_t>(index));
  if (entry.ranks) options.nproc_per_node = *entry.ranks;
  options.run_id = arguments.rdzv_id;
  if (hosts.size() == 1) return set_one_node(arguments, options);
  const int nodes = static_cast<int>(hosts.size());
  options.nodes = launch::NodesOptions{.min_nodes = nodes, .max_nodes = nodes, .node_rank = index};
  apply_settings(arguments.rdzv_conf, *options.nodes);
  options.nodes->endpoint = {
      .host = without_brackets(arguments.master_addr.value_or(machine::address_part(hosts.front().name))),
      .port = checked_port(arguments.master_port.value_or(kStaticPort), "--master-port")};
  options.nodes->secret = launch::read_secret("", env);
  options.master_addr = options.nodes->endpoint.host;
}

void set_nodes(const RunArguments& arguments, const Env& env, launch::LaunchOptions& options) {
  check_backend(arguments.rdzv_backend);
  if (!arguments.hosts.empty()) return set_node_of_hosts(arguments, env, options);
  if (const auto step = has_no_node_options(arguments) ? slurm_nodes(env) : std::nullopt) {
    options.run_id = arguments.rdzv_id;
    options.nodes = nodes_of_step(arguments, *step);
    options.nodes->secret = launch::read_secret(arguments.secret_file, env);
    options.master_addr = options.nodes->endpoint.host;
    return;
  }
  const NodeCounts counts = parse_nnodes(arguments.nnodes);
  const bool unnamed = arguments.rdzv_id == "none" && has_own_port(arguments, counts);
  options.run_id = unnamed ? random_hex(2) : arguments.rdzv_id;
  if (arguments.standalone) {
    if (counts.max > 1) {
      throw_error<ArgumentError>("--standalone means one node and contradicts --nnodes {}; give one of them",
                                 arguments.nnodes);
    }
    warn_about_ignored(arguments);
    options.run_id = random_hex(2);
  } else if (counts.max == 1) {
    set_one_node(arguments, options);
  } else {
    options.nodes = several_nodes(arguments, counts, env);
    options.nodes->secret = launch::read_secret(arguments.secret_file, env);
    options.master_addr = options.nodes->endpoint.host;
  }
}

// What is this launcher's own is that of the one that has started it.
void set_adopted(const std::string& text, launch::LaunchOptions& options) {
  auto node = launch::parse_adopted(text);
  if (!options.nodes) throw ArgumentError("--adopt: the run has one node; no other node can take its place");
  if (options.nodes->node_rank) options.nodes->node_rank = node.node_rank;
  options.nodes->is_host = false;
  options.nproc_per_node = static_cast<int>(node.threads.size());
  options.role = node.role;
  options.bind = machine::Binding::none;
  options.metrics.reset();
  options.output.error_file.clear();
  options.adopted = std::move(node);
}

}  // namespace

void set_rendezvous(const RunArguments& arguments, const Env& env, launch::LaunchOptions& options) {
  set_nodes(arguments, env, options);
  if (!arguments.adopt.empty()) set_adopted(arguments.adopt, options);
}

namespace {

using Variables = std::map<std::string, std::string>;

// --export, options that are set in the environment, and the secret.
Variables environment_for_hosts(const RunArguments& arguments, const Env& env) {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (text.starts_with("PET_")) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const auto& word : arguments.exported) {
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    const auto value = equals == std::string::npos ? env.get(name) : word.substr(equals + 1);
    if (name.empty() || !value) {
      throw_error<ArgumentError>("--export {}: the variable is not set here; use NAME=VALUE", word);
    }
    variables[name] = *value;
  }
  const auto secret = launch::read_secret(arguments.secret_file, env);
  variables["LOCKSTEP_SECRET"] = secret.empty() ? random_hex(4) : secret.text();
  return variables;
}

}  // namespace

launch::HostsOptions hosts_options(const RunArguments& arguments, const launch::LaunchOptions& checked,
                                   const std::vector<std::string>& words, const Env& env) {
  launch::HostsOptions options{
      .hosts = launch::parse_hosts(arguments.hosts),
      .shell = machine::remote_shell(arguments.ssh),
      .program = arguments.lockstep.empty() ? own_program().string() : arguments.lockstep,
      .stop_signals = checked.stop_signals,
      .grace_period = checked.grace_period};
  const auto environment = environment_for_hosts(arguments, env);
  if (checked.nodes) {
    options.view = checked;
    options.view->nodes->secret = launch::Secret(environment.at("LOCKSTEP_SECRET"));
  }
  for (std::size_t index = 0; index < options.hosts.size(); ++index) {
    auto of_host = words;
    of_host.insert(of_host.begin() + 1, {"--host-index", std::to_string(index)});
    options.orders.push_back({.arguments = std::move(of_host),
                              .environment = environment,
                              .folder = std::filesystem::current_path().string()});
  }
  return options;
}

}  // namespace lockstep::cli
