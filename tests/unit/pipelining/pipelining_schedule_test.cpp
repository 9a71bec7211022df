// SPDX-License-Identifier: BSD-3-Clause
// The text of plans, their check, simulation and drawing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/pipelining/schedule.h>

#include "pipelining/check_plan.h"
#include "pipelining/plans.h"
#include "support/error_of.h"

namespace lockstep::testing {
namespace {

using namespace pipelining;
using ::testing::HasSubstr;

TEST(PipelineActions, TextBothWays) {
  for (const std::string text : {"2F0", "0I1", "0W1", "13B255", "3SEND_F1", "4RECV_F1", "3SEND_B1",
                                 "2RECV_B1", "1UNSHARD", "1RESHARD", "0REDUCE_GRAD", "(0F1;1B0)OVERLAP_F_B"})
    EXPECT_EQ(Action::from_str(text).str(), text);
  EXPECT_EQ(Action::from_str(" 2F0\n").microbatch_index, 0);
  for (const std::string text : {"", "F0", "2F", "2X0", "0UNSHARD1", "2F0x", "(0F1;1B0)", "()OVERLAP_F_B",
                                 "1OVERLAP_F_B", "99999999999F0", "(0F1"})
    EXPECT_THAT(error_of<ArgumentError>([&] { Action::from_str(text); }), HasSubstr("\"" + text + "\""))
        << text;
}

TEST(PipelineActions, CsvBothWays) {
  const auto plan = make_plan("DualPipeV", 4, 2, 9);
  const auto read = plan_from_csv(to_csv(plan));
  EXPECT_EQ(read.pipeline_order, plan.pipeline_order);
  EXPECT_EQ(read.num_stages, 8);
  EXPECT_EQ(read.n_microbatches, 9);
  EXPECT_EQ(plan_from_csv("0F0,,0B0\r\n").pipeline_order[0][1], std::nullopt);
  EXPECT_THAT(error_of<ArgumentError>([] { plan_from_csv("0F0,0B0\n1F0,1Q0\n"); }),
              HasSubstr("line 2, column 2: action \"1Q0\""));
  EXPECT_THAT(error_of<ArgumentError>([] { plan_from_csv("\n"); }), HasSubstr("no actions"));
  EXPECT_EQ(plan_from_csv("0F0,0SEND_F0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n").pipeline_order,
            plan_from_csv("0F0,0SEND_F0,0REDUCE_GRAD\n").pipeline_order);
  for (const std::string wrong : {"0WAIT_F0", "0WAIT_SEND_F", "WAIT_SEND_F0", "0WAIT_RECV_B0"}) {
    EXPECT_THAT(error_of<ArgumentError>([&] { plan_from_csv("0F0," + wrong + "\n"); }),
                HasSubstr("line 1, column 2"))
        << wrong;
  }
}

TEST(PipelinePlans, HaveTheMessagesOfTwoRanksInOneOrder) {
  for (const auto& [name, stages] : {std::pair{"GPipe", 1},
                                     {"1F1B", 1},
                                     {"Interleaved1F1B", 2},
                                     {"LoopedBFS", 2},
                                     {"InterleavedZeroBubble", 2},
                                     {"ZBVZeroBubble", 2},
                                     {"DualPipeV", 2}})
    for (const int ranks : {2, 4})
      EXPECT_NO_THROW(check_order_of_pairs(add_comms(make_plan(name, ranks, stages, 8))));
  // Each direction is in order. Over NCCL each rank would wait in its first message for the other's second.
  const auto crossed = plan_from_csv(
      "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0RECV_B1,0B0,0B1,0REDUCE_GRAD\n"
      "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n");
  EXPECT_NO_THROW(check_plan(crossed));
  for (const auto& [refused, message] : std::vector<std::pair<std::string, std::string>>{
           {"0F0,0F1,0B0,0REDUCE_GRAD,0B1\n1F0,1F1,1B0,1B1,1REDUCE_GRAD\n", "0B1 after 0REDUCE_GRAD"},
           {"0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1F0,1F1,1B0,1B1\n", "not 1REDUCE_GRAD"}})
    EXPECT_THAT(error_of<ArgumentError>([&] { check_plan(plan_from_csv(refused)); }), HasSubstr(message));
  EXPECT_THAT(
      error_of<ArgumentError>([&] { check_order_of_pairs(crossed); }),
      HasSubstr(
          "ranks 0 and 1 send and receive the gradients of stage 0, micro-batch 0 in different orders"));
}

TEST(PipelinePlans, NamesAndRefusals) {
  EXPECT_EQ(make_plan("ScheduleGPipe", 2, 1, 4).pipeline_order, make_plan("gpipe", 2, 1, 4).pipeline_order);
  const auto refusal = [](const char* name, int ranks, int stages, int microbatches) {
    return error_of<ArgumentError>([=] { make_plan(name, ranks, stages, microbatches); });
  };
  EXPECT_THAT(refusal("2F2B", 2, 1, 4), HasSubstr("no schedule \"2F2B\"; the names are GPipe, 1F1B,"));
  EXPECT_THAT(refusal("1F1B", 4, 1, 3), HasSubstr("3 micro-batches and 4 stages"));
  EXPECT_THAT(refusal("GPipe", 4, 2, 3), HasSubstr("2 stages on each rank; it has exactly 1"));
  EXPECT_THAT(refusal("Interleaved1F1B", 2, 2, 5), HasSubstr("not a multiple of the 2 rounds"));
  EXPECT_THAT(refusal("LoopedBFS", 2, 0, 5), HasSubstr("all are at least 1"));
}

TEST(PipelinePlans, MergedBackward) {
  const auto merged = merge_bw(plan_from_csv("0F0,0I0,,0W0,0F1,0I1\n"));
  EXPECT_EQ(to_csv(merged), "0F0,0B0,0F1,0I1\r\n");
}

std::string refused(const char* csv) {
  return error_of<ArgumentError>([=] { simulate(plan_from_csv(csv)); });
}

TEST(PipelineCheck, NamesWhatIsWrong) {
  EXPECT_EQ(refused("0F0,0B0\n1F0,1I0,1W0\n"), "");
  EXPECT_THAT(refused("0F0,0B0\n1F0,1I0\n"), HasSubstr("rank 1, stage 1, micro-batch 0: W is missing"));
  EXPECT_THAT(refused("0F0,0F0,0B0\n1F0,1B0\n"),
              HasSubstr("rank 0, step 1, action 0F0: the stage has run it"));
  EXPECT_THAT(refused("0B0,0F0\n1F0,1B0\n"), HasSubstr("rank 0, step 0, action 0B0: before the forward"));
  EXPECT_THAT(refused("0F0,0B0,0W0\n1F0,1B0\n"), HasSubstr("action 0W0: the stage has run it"));
  EXPECT_THAT(refused("0F0,0B0\n0F0,0B0\n"), HasSubstr("stage 0 is also on rank 0"));
  EXPECT_THAT(refused("0F0,0B0,2F0,2B0\n"), HasSubstr("stage 1 is on no rank"));
  EXPECT_THAT(refused("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"),
              HasSubstr("deadlock; rank 0 waits at step 1, action 0B0; rank 1 waits at step 0, action 1F1"));
  EXPECT_THAT(refused("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n"),
              HasSubstr("rank 1, stage 1, micro-batch 0: SEND_B is missing"));
  EXPECT_THAT(refused("0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0RECV_B1,0B0,0B1\n"
                      "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"),
              HasSubstr("rank 0 sends the inputs of stage 1, micro-batch 1 to rank 1, which receives"));
  EXPECT_THAT(error_of<ArgumentError>([] { add_comms(plan_from_csv("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n")); }),
              HasSubstr("rank 0 waits at 0B0; rank 1 waits at 1F1"));
}

TEST(PipelineSimulation, IdleShares) {
  const auto idle = [](const char* name, int stages) {
    return simulate(make_plan(name, 2, stages, 8)).idle_share;
  };
  EXPECT_NEAR(idle("1F1B", 1), 1.0 / 9, 1e-9);
  EXPECT_NEAR(idle("GPipe", 1), 1.0 / 9, 1e-9);
  EXPECT_NEAR(idle("Interleaved1F1B", 2), 1.0 / 17, 1e-9);
  EXPECT_NEAR(idle("InterleavedZeroBubble", 1), 0.04, 1e-9);
  const auto slow = simulate(make_plan("GPipe", 2, 1, 8), {{}}, 0.5);
  EXPECT_NEAR(slow.step_time, 27 + 2 * 0.5, 1e-9);
  EXPECT_EQ(slow.peak_microbatches, (std::vector{8, 8}));
  EXPECT_EQ(simulate(make_plan("1F1B", 2, 1, 8)).peak_microbatches, (std::vector{2, 1}));
  const auto uneven = simulate(make_plan("GPipe", 2, 1, 2), {{1, 1, 1}, {3, 2, 1}});
  EXPECT_NEAR(uneven.step_time, 1 + 6 + 6 + 2, 1e-9);
  EXPECT_THAT(error_of<ArgumentError>([] {
                simulate(make_plan("GPipe", 2, 1, 2), {{}, {}, {}});
              }),
              HasSubstr("3 times for 2 stages"));
}

TEST(PipelineSimulation, GivesBackTheTimesOfItsStages) {
  const std::vector<StageTimes> times{{1, 2, 4}, {3, 5, 0.5}};
  const auto expect = [&](const char* plan, std::vector<StageTimes> expected) {
    const auto found = stage_times(simulate(plan_from_csv(plan), times));
    ASSERT_EQ(found.size(), 2);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_DOUBLE_EQ(found[i].forward, expected[i].forward);
      EXPECT_DOUBLE_EQ(found[i].input, expected[i].input);
      EXPECT_DOUBLE_EQ(found[i].weight, expected[i].weight);
    }
  };
  expect("0F0,0I0,0W0\n1F0,1I0,1W0\n", times);
  expect("0F0,0B0\n1F0,1I0,1W0\n", {{1, 3, 3}, {3, 5, 0.5}});
  auto partial = simulate(plan_from_csv("0F0,0B0\n1F0,1B0\n"));
  std::erase_if(partial.actions, [](const TimedAction& each) { return each.action.stage_index == 0; });
  EXPECT_THAT(error_of<ArgumentError>([&] { stage_times(partial); }),
              HasSubstr("the timeline has no forward of stage 0"));
}

TEST(PipelineSimulation, LargePlans) {
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble",
                           "DualPipeV", "LoopedBFS"}) {
    const bool one = name == std::string("GPipe") || name == std::string("1F1B");
    const auto plan = make_plan(name, 64, one ? 1 : 2, 256);
    EXPECT_LT(simulate(add_comms(plan)).idle_share, 0.5) << name;
  }
}

TEST(PipelineDrawing, HasABoxForEachAction) {
  const auto simulation = simulate(make_plan("ZBVZeroBubble", 2, 2, 4));
  const auto svg = draw_svg(simulation);
  std::size_t boxes = 0;
  for (auto at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) ++boxes;
  EXPECT_EQ(boxes, 4 * 4 * 3);
  EXPECT_EQ(boxes, simulation.actions.size());
  EXPECT_THAT(svg, HasSubstr("<title>0F3 from"));
  EXPECT_THAT(svg, HasSubstr("idle "));
}

}  // namespace
}  // namespace lockstep::testing
