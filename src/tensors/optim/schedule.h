// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/optim/lr_scheduler.h>

#include "optim/fields.h"

namespace lockstep::optim {

// What Python's schedulers add to the param_groups of their optimizer, such as "initial_lr". The schedulers
// of an optimizer share it as long as one of them lives.
struct GroupEntries {
  std::vector<std::map<std::string, double>> groups;
};

// The entries that the living schedulers of the optimizer share; new ones if there are none. Any thread.
std::shared_ptr<GroupEntries> shared_entries(const torch::optim::Optimizer& optimizer);

// Add the entries of group `index` to its state dict, and replace those that the dict has. Without schedulers
// there are none.
void write_entries(const torch::optim::Optimizer& optimizer, std::size_t index, Dict& group);
void read_entries(const torch::optim::Optimizer& optimizer, std::size_t index, const Dict& group);

// The state and rules of an LRScheduler, which is a handle to it. A scheduler overrides its formula and the
// fields of its state dict.
class Schedule {
 public:
  Schedule(torch::optim::Optimizer& optimizer, const char* name);
  virtual ~Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  // Makes a schedule and takes its initial step.
  template <typename Kind, typename... Args>
  static std::shared_ptr<Schedule> begun(torch::optim::Optimizer& optimizer, Args&&... args) {
    auto schedule = std::make_shared<Kind>(optimizer, std::forward<Args>(args)...);
    static_cast<Schedule&>(*schedule).begin();
    return schedule;
  }
  static const std::shared_ptr<Schedule>& of(const LRScheduler& scheduler) { return scheduler.schedule_; }

  virtual void step();
  // Goes to the next epoch or, by the closed form, to `epoch`.
  virtual void update(std::optional<std::int64_t> epoch);
  void initial_step();
  // Takes back the epoch of the initial step.
  virtual void undo() { --last_epoch_; }
  // Whether other schedulers make up this one.
  virtual bool is_composed() const { return false; }

  const char* name() const { return name_; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  const std::vector<double>& last_lr() const { return last_lr_; }
  Dict state_dict();
  void load_state_dict(const Dict& state_dict);

 protected:
  virtual void begin();
  // The next rate of a group whose rate is `lr`.
  virtual double next_lr(std::size_t group, double lr) const = 0;
  // The rate at last_epoch_, independent of `lr` where Python's is.
  virtual double closed_form_lr(std::size_t group, double lr) const { return next_lr(group, lr); }
  virtual void visit_fields(Fields& fields);
  // What is wrong with the values; empty if nothing.
  virtual std::string problem() const { return {}; }

  // Throws if the group is new since the scheduler was made.
  void check_group(std::size_t group) const;
  double base_lr(std::size_t group) const;
  std::size_t group_count() const { return optimizer_.param_groups().size(); }
  std::string count_problem(const char* what, std::size_t count) const;
  void check() const;

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<GroupEntries> entries_;
  std::vector<double> base_lrs_;
  std::int64_t last_epoch_ = -1;
  std::int64_t step_count_ = 0;
  bool is_initial_ = false;
  std::vector<double> last_lr_;

 private:
  void read(const Dict& state_dict);
  const char* name_;
};

inline double real(std::int64_t count) { return static_cast<double>(count); }

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
