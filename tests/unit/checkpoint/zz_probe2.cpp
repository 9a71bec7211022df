#include <lockstep/lockstep.h>
#include <torch/torch.h>
namespace lockstep::probe {
data::TensorDataset set{at::Tensor(), at::Tensor()};
torch::nn::Linear net(3, 2); torch::optim::SGD opt(net->parameters(), 0.1);
void p1() { dcp::load({{"model", get_model_state_dict(net)}}, {.checkpoint_id = "dir"}); dcp::load({{"model", get_model_state_dict(net)}}, "dir"); dcp::save({{"model", get_model_state_dict(net)}}, {.checkpoint_id = "dir"}); dcp::save(state_dict(net), "dir"); Dict d; dcp::load(d, "dir"); dcp::load(d, {.checkpoint_id = "dir"}); dcp::load("dir"); }
void p2() { auto [m, o] = get_state_dict(net, opt); set_state_dict(net, opt, m, o); auto sharded = fully_shard(net); auto [m2, o2] = get_state_dict(sharded, opt, {.full_state_dict = true}); set_state_dict(sharded, opt, m2, o2); }
void p3() { data::datasets::MNIST m("data", {.train = true}); data::transforms::Compose t({data::transforms::ToTensor(), data::transforms::Normalize({0.1}, {0.3})}); data::CIFAR10 c("data", true, t); }
void p4() { auto v = load("x.pt"); int e = v["epoch"].to<int>(); auto t = v["t"].to<torch::Tensor>(); auto s = v["n"].to<std::string>(); auto d = v["d"].to<Dict>(); (void)e; }
void p5() { auto [a, b] = data::random_split(set, {0.5, 0.5}, {.generator = at::Generator()}); auto [c, d] = data::random_split(set, {1, 2}, at::Generator()); data::random_split(set, std::vector<int>{1, 2}); }
void p6() { using namespace torch; using namespace lockstep; datasets::MNIST m("data"); transforms::ToTensor t; lockstep::data::Dataset* p = nullptr; (void)p; }
void p7() { using namespace torch::data; using namespace lockstep::data; DataLoader l(::lockstep::probe::set, 4); transforms::ToTensor(); }
void p8() { const auto report = load_state_dict(net, load("m.pt"), false); auto [missing, unexpected] = report; std::cout << report << missing.size(); }
void p9() { transforms::ColorJitter j({.brightness = 0.2}); transforms::ColorJitter k; transforms::ColorJitter l(0.2, 0.2); transforms::ColorJitter m({}); transforms::Resize r({224, 224}, transforms::InterpolationMode::BICUBIC); transforms::RandomCrop c({32, 32}, 4); transforms::RandomCrop c2(32, {.padding = 4, .pad_if_needed = true}); transforms::RandomCrop c3(32, {}); }
}
