// SPDX-License-Identifier: BSD-3-Clause
// Structs of the user's among the parts of a training.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

// Stateful: nothing but the two functions.
struct Meter {
  std::int64_t count = 0;
  double best = 0;
  std::string phase;
  bool frozen = false;
  at::Tensor history;

  Dict state_dict() const {
    return {{"count", count}, {"best", best}, {"phase", phase}, {"frozen", frozen}, {"history", history}};
  }
  void load_state_dict(const Dict& dict) {
    count = dict.at("count").as_int();
    best = dict.at("best").as_double();
    phase = dict.at("phase").as_string();
    frozen = dict.at("frozen").as_bool();
    history = dict.at("history").as_tensor();
  }
};
static_assert(Stateful<Meter>);

Meter used_meter() {
  return {.count = 1LL << 40,
          .best = 0.1,
          .phase = "wärm-up",
          .frozen = true,
          .history = torch::arange(6, torch::kBFloat16).reshape({2, 3}).t()};
}

void expect_used(const Meter& meter) {
  const auto used = used_meter();
  EXPECT_EQ(meter.count, used.count);
  EXPECT_EQ(meter.best, used.best);
  EXPECT_EQ(meter.phase, used.phase);
  EXPECT_TRUE(meter.frozen);
  EXPECT_EQ(meter.history.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(meter.history.strides(), used.history.strides());
  EXPECT_TRUE(meter.history.equal(used.history));
}

TEST(UserStruct, IsRestoredFromACheckpoint) {
  const testing::TempFolder temp;
  Meter saved = used_meter();
  std::int64_t step = 7;
  CheckpointManager manager(temp.path());
  manager.save(step, TrainingState().add("meter", saved).add("step", step).state_dict());
  Meter loaded;
  std::int64_t loaded_step = 0;
  TrainingState training;
  training.add("meter", loaded).add("step", loaded_step);
  training.load_state_dict(manager.load_latest()->contents.as_dict());
  expect_used(loaded);
  EXPECT_EQ(loaded_step, 7);
}

TEST(UserStruct, IsRestoredFromPartsOfEveryRank) {
  const testing::TempFolder temp;
  Meter saved = used_meter();
  CheckpointManager manager(temp.path(), {.writing = CheckpointWriting::every_rank});
  manager.save(1, TrainingState().add("meter", saved).state_dict());
  Meter loaded;
  TrainingState().add("meter", loaded).load_state_dict(manager.load_latest()->contents.as_dict());
  EXPECT_EQ(loaded.count, saved.count);
  EXPECT_EQ(loaded.phase, saved.phase);
  EXPECT_TRUE(loaded.history.equal(saved.history));
}

TEST(UserStruct, MismatchesAreNamedWithTheirPart) {
  Meter saved = used_meter();
  const auto whole = TrainingState().add("meter", saved).state_dict();
  Meter loaded;
  TrainingState training;
  training.add("meter", loaded);
  const auto error_with = [&](const std::function<void(Dict&)>& change) {
    auto dict = whole;
    change(dict.at("meter").as_dict());
    return error_of([&] { training.load_state_dict(dict); });
  };
  EXPECT_EQ(error_with([](Dict&) {}), "");
  for (const auto* field : {"count", "best", "phase", "frozen", "history"}) {
    EXPECT_THAT(error_with([&](Dict& dict) { dict.erase(field); }),
                AllOf(HasSubstr("'meter' of the checkpoint does not fit"), HasSubstr(field)));
    EXPECT_THAT(error_with([&](Dict& dict) { dict.set(field, None{}); }),
                AllOf(HasSubstr("'meter' of the checkpoint does not fit"), HasSubstr("NoneType")));
  }
  EXPECT_THAT(error_of([&] { training.load_state_dict({}); }), HasSubstr("the checkpoint has no 'meter'"));
}

TEST(UserStruct, MayBeAddedByFunctions) {
  std::vector<std::int64_t> seen{3, 1, 2};
  const auto with = [](std::vector<std::int64_t>& numbers) {
    TrainingState training;
    training.add_functions(
        "seen",
        [&numbers] {
          List list;
          for (const auto number : numbers) list.items.emplace_back(number);
          return Value(list);
        },
        [&numbers](const Value& value) {
          numbers.clear();
          for (const auto& item : value.as_items()) numbers.push_back(item.as_int());
        });
    return training;
  };
  const auto saved = load_bytes(save_bytes(with(seen).state_dict()));
  std::vector<std::int64_t> loaded;
  with(loaded).load_state_dict(saved.as_dict());
  EXPECT_EQ(loaded, seen);
  EXPECT_THAT(error_of([&] { with(loaded).load_state_dict({{"seen", 5}}); }), HasSubstr("'seen'"));
}

}  // namespace
}  // namespace lockstep
