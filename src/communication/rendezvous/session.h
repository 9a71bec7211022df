// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/base/mutex.h>
#include <lockstep/base/world.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/version.h>

#include "backends/backend_spec.h"
#include "backends/member_store.h"
#include "backends/registry.h"
#include "base/env.h"
#include "base/run_memory.h"
#include "node/thread_exchange.h"
#include "rendezvous/generations.h"
#include "rendezvous/host_loss_watch.h"
#include "rendezvous/process_handlers.h"
#include "rendezvous/rank_info.h"
#include "rendezvous/rank_resources.h"
#include "rendezvous/store_barrier.h"
#include "rendezvous/tcp.h"
#include "runtime/elastic_run.h"
#include "runtime/run.h"

namespace lockstep::rendezvous {

// What init() changes in this process until the context ends.
class ProcessScope {
 public:
  explicit ProcessScope(bool reports_uncaught) {
    if (reports_uncaught) report_uncaught_.emplace();
  }

 private:
  IgnoreSigpipe ignore_sigpipe_;
  std::optional<ReportUncaught> report_uncaught_;
};

struct SessionOptions : InitOptions {
  // What tests replace: the environment variables, and the version of Lockstep for the other ranks.
  Env env = {};
  std::string lockstep = lockstep::version();
  // What the launcher has given, if it replaces lost ranks.
  std::shared_ptr<const RunMemory> run_memory = {};
  bool is_replacement = false;  // this process takes the place of a lost rank

  // Whether this process waits for no other rank in init().
  bool joins_later() const { return enable_reconfigure || is_replacement; }
};

// lockstep::init().
Context init(const SessionOptions& options, std::source_location where = std::source_location::current());

// What a Context owns: the store, the default group and the groups made from it.
class Session : public runtime::Run, private runtime::ElasticRun {
 public:
  // Selects this rank's device, connects the default group, and becomes the current run. Every rank calls it
  // after store_barrier(), or with_python, where each rank only has the store. `threads`: of ranks that are
  // threads of this process.
  static std::unique_ptr<Session> connect(const SessionOptions& options, const backends::BackendSpec& backend,
                                          const RankInfo& rank_info, c10::intrusive_ptr<c10d::Store> store,
                                          std::shared_ptr<node::ThreadExchange> threads = {});
  // Unless an exception ends it, rank 0 waits for the other ranks to leave, because it serves their store.
  ~Session() override;

  const World& world() const override { return config_.world; }
  c10::Device device() const override { return config_.device; }
  const ProcessGroup& group() const override { return *group_; }
  void synchronize() const;
  // Until this object ends, see ThreadShare. Again after each reconfigure().
  void share_cores();
  void keep(std::unique_ptr<ProcessScope> scope) { process_scope_ = std::move(scope); }
  ProcessGroup new_group(std::vector<int> ranks, const GroupOptions& options) override;
  // As Context::reconfigure().
  void reconfigure(const ReconfigureOptions& options) { form(options, Formation::anew); }
  std::vector<int> hosts_of(const ProcessGroup& group) const override;
  ProcessGroup split_group(const ProcessGroup& parent, const std::vector<std::vector<int>>& split_ranks,
                           const GroupOptions& options) override;
  const Context& context() const override { return *context_; }
  void set_context(const Context& context) { context_ = &context; }
  runtime::ElasticRun* elastic() override { return generations_ ? this : nullptr; }

 private:
  struct Config {
    c10::intrusive_ptr<c10d::Store> store;  // of the default group as it is
    c10::intrusive_ptr<c10d::Store> store_of_run;
    std::shared_ptr<node::ThreadExchange> threads;
    Env env;
    std::string master_host;
    backends::BackendSpec backend;  // as requested
    NcclOptions nccl;
    bool check_calls;
    bool with_python;
    bool enable_reconfigure;
    bool serves_store;
    std::shared_ptr<const RunMemory> run_memory;  // if the launcher replaces lost ranks
    bool is_replacement;                          // this process is one that has not met the others yet
    HostMap hosts;
    World world;
    c10::Device device;
    bool share_device;  // some ranks have the same device
  };
  // The members of a group in the order of their group ranks, and this rank's number among them.
  struct Members {
    std::vector<int> ranks;
    int own;
  };
  // What a group was made of, for the groups that it is split into.
  struct GroupRecipe {
    std::string key;
    backends::BackendSpec backend;  // as requested
    NcclOptions nccl;
  };

  explicit Session(Config config)
      : config_(std::move(config)), uncaught_at_start_(std::uncaught_exceptions()) {}

  void connect_default_group(const SessionOptions& options);
  ProcessGroup connect_group(const std::string& key, const backends::BackendSpec& spec,
                             const Members& members, const NcclOptions& nccl, ProcessGroupInfo info);
  // `function`: of the program, for messages.
  ProcessGroup connect_subgroup(const char* function, const GroupRecipe& recipe,
                                const std::vector<int>& ranks, ProcessGroupInfo info);
  ProcessGroup connect_members(const GroupRecipe& recipe, const std::vector<int>& ranks,
                               ProcessGroupInfo info);
  // With Python ranks: see python_splits_default_group().
  bool splits_default_group(const backends::BackendSpec& spec) const;
  // All ranks of the default group call it, those outside of the new one without ranks; these get nothing.
  c10::intrusive_ptr<c10d::Backend> split_default_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                        const std::vector<int>& ranks,
                                                        const ProcessGroupInfo& info);
  backends::GroupTopology topology(const std::vector<int>& ranks) const;
  void check_members(const std::vector<int>& ranks) const;
  void wait_for_others_to_leave();
  enum class Formation {
    anew,        // the copies of the default group stay as they are
    after_loss,  // they refer to the new one; its ranks are those of before, or some of them
  };
  void form(const ReconfigureOptions& options, Formation formation);
  // A group of this rank alone, which looks as if the others were there.
  static backends::BackendHandle simulate(const backends::BackendRequest& request,
                                          const std::shared_ptr<comm::Membership>& membership);

  const RunMemory& memory() const override { return *config_.run_memory; }
  bool is_replacement() const override { return config_.is_replacement; }
  bool has_other_groups() const override { return !subgroups_.empty(); }
  bool must_form_again() const override { return generations_->is_proposed(); }
  void form_again() override;
  RunPhase phase() const override { return generations_->phase(); }
  void set_phase(RunPhase phase) override { generations_->set_phase(phase); }
  void begin_running() override { generations_->begin_running(); }
  void leave_before_meeting();
  void on_lost_host();
  void remember_backend();

  std::optional<QuietC10d> leaves_quietly_;      // until everything that has sockets is gone
  std::unique_ptr<ProcessScope> process_scope_;  // outlives everything that has sockets
  std::optional<ThreadShare> thread_share_;
  Config config_;
  int uncaught_at_start_;
  int groups_made_ = 0;
  Mutex reconfiguring_;  // one reconfigure() at a time, during which nothing else may use the session
  // Since the last reconfigure().
  c10::intrusive_ptr<backends::MemberStore> formed_store_ LOCKSTEP_GUARDED_BY(reconfiguring_);
  std::optional<ProcessGroup> group_;
  std::vector<ProcessGroup> subgroups_;
  std::map<const comm::GroupState*, GroupRecipe> recipes_;
  const Context* context_ = nullptr;
  std::optional<Generations> generations_;
  Mutex leaving_;
  c10::weak_intrusive_ptr<c10d::Backend> backend_to_leave_ LOCKSTEP_GUARDED_BY(leaving_){
      c10::intrusive_ptr<c10d::Backend>()};
  std::optional<HostLossWatch> loss_watch_;  // ends before all that it leaves
};

// Whether the agent of torchrun or `lockstep run` serves the store at the address of rank 0.
bool is_served_by_agent(const Env& env);

// Whether the ranks compare their calls. c10d reads its variable so, in upper or lower case.
bool checks_calls(const SessionOptions& options);

// The device that this rank will probably have, for checks before the ranks connect.
c10::Device expected_device(const SessionOptions& options, const backends::BackendSpec& backend);

}  // namespace lockstep::rendezvous
