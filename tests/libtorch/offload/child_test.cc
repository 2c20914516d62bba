// A forked child offloads and trains a model of its own: whatever its parent
// has offloaded, which is refused there, and whatever the parent does just
// then.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/libtorch/offload/joined_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

class ChildOfAnOffload : public JoinedTest {
 protected:
  // In the child: its model has the bits of one in memory.
  bool Trains(uint64_t seed) {
    at::manual_seed(seed);
    TiedModel own;
    at::manual_seed(seed);
    TiedModel plain;
    const auto runtime = MakeRuntime();
    const auto reference =
        *OffloadedAdamW::Create(*runtime, TrainedOf(plain), WithRate());
    auto offload = Offload::Create(*own, Share(0.4));
    if (!Told(offload.status())) return false;
    auto optimizer =
        OffloadedAdamW::Create(**offload, TrainedOf(own), WithRate());
    if (!Told(optimizer.status())) return false;
    bool is_right = true;
    for (int64_t step = 1; step <= 2; ++step) {
      (*offload)->BeginStep();
      (*optimizer)->zero_grad();
      reference->zero_grad();
      const std::vector<at::Tensor> losses = TwoPasses(own, step);
      const std::vector<at::Tensor> right = TwoPasses(plain, step);
      for (size_t i = 0; i < right.size(); ++i) {
        is_right = is_right && losses[i].equal(right[i]);
      }
      is_right = is_right && Told((*optimizer)->TryStep()) &&
                 Told(reference->TryStep());
    }
    optimizer->reset();
    is_right = is_right && Told((*offload)->Close(Offload::AtClose::kRestore));
    const std::vector<at::Tensor> values = own->parameters();
    const std::vector<at::Tensor> right = plain->parameters();
    for (size_t i = 0; i < right.size(); ++i) {
      is_right = is_right && values[i].equal(right[i]);
    }
    return is_right;
  }
  static bool Told(const absl::Status& status) {
    if (!status.ok()) std::cerr << "in a child: " << status << "\n";
    return status.ok();
  }
  // In the child: what is its parent's.
  bool IsRefused(Offload& offload, TiedModel& model, const at::Tensor& weight) {
    const auto is_ours = [](const std::string& text) {
      return text.starts_with("terrace: '") &&
             text.find("forked child") != std::string::npos;
    };
    return absl::IsCancelled(offload.error()) &&
           absl::IsCancelled(offload.Close(Offload::AtClose::kRestore)) &&
           is_ours(ThrownBy([&] { model->forward(tokens_); })) &&
           is_ours(ThrownBy([&] { weight.sum(); }));
  }
};

TEST_F(ChildOfAnOffload, TrainsAModelOfItsOwn) {
  MakeJoined(Share(0.4));
  StepBoth(1, 2);
  const at::Tensor weight = model_->layers[5]->parameters()[0];
  for (const bool is_first : {true, false}) {
    EXPECT_TRUE(InChild([&] {
      return (is_first || IsRefused(*offload_, model_, weight)) && Trains(2) &&
             IsRefused(*offload_, model_, weight) && Trains(3);
    }));
  }
  StepBoth(3, 4);
}

TEST_F(ChildOfAnOffload, HasChildrenThatDoSoToo) {
  MakeJoined(Share(0.4));
  StepBoth(1, 1);
  EXPECT_TRUE(InChild([&] {
    at::manual_seed(2);
    TiedModel own;
    const at::Tensor weight = own->layers[5]->parameters()[0];
    auto offload = Offload::Create(*own, Share(0.4));
    return Told(offload.status()) && InChild([&] {
             return IsRefused(**offload, own, weight) &&
                    IsRefused(*offload_, model_, weight) && Trains(3);
           }) &&
           Told((*offload)->Close(Offload::AtClose::kRestore)) && Trains(4);
  }));
  StepBoth(2, 2);
}

TEST_F(ChildOfAnOffload, EndsAndGivesUpWhatItHasOfItsParent) {
  MakeJoined(Share(0.4));
  StepBoth(1, 2);
  EXPECT_TRUE(InChild([&] {
    const bool is_right = Trains(2);
    model_ = TiedModel(nullptr);
    optimizer_.reset();
    offload_.reset();
    return is_right && Trains(3);
  }));
  StepBoth(3, 3);
}

TEST_F(ChildOfAnOffload, TrainsWhateverAThreadOfItsParentDoes) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a child has the locks of the sanitiser's allocator";
#endif
  MakeJoined(Share(0.4));
  std::atomic<bool> stop = false;
  std::atomic<bool> is_right = true;
  std::thread computes([&] {
    const c10::NoGradGuard guard;
    while (!stop) {
      if (!model_->forward(tokens_).equal(answer_)) is_right = false;
    }
  });
  for (int round = 0; round < 20; ++round) {
    EXPECT_TRUE(InChild([&] {
      const bool trains = Trains(2);
      model_ = TiedModel(nullptr);
      optimizer_.reset();
      offload_.reset();
      return trains;
    })) << round;
  }
  stop = true;
  computes.join();
  EXPECT_TRUE(is_right);
}

}  // namespace
}  // namespace terrace
