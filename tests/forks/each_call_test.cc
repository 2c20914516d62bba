// A child of fork() at each system call of a step, a save, a fetch, a start and
// a close, over disks of this process and over a host's daemon, to which each
// message is such a call: it finds its parent's objects Cancelled and has none
// of its files, memory and locks; it ends, lives on or works with its own; and
// the parent goes on with the right bits.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/checkpoint.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/forks/forked_rounds.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using absl::IsCancelled;

constexpr int64_t kTensorBytes = 128 << 10;
constexpr int kTensors = 8;  // more than fit the budget

// In a child: says what is not as it should be.
bool Told(bool is_good, const char* what) {
  if (!is_good) std::cerr << "in a child: " << what << "\n";
  return is_good;
}

bool IsMapped(const void* address) {
  unsigned char is_resident = 0;
  const auto page = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{4095};
  return mincore(reinterpret_cast<void*>(page), 1, &is_resident) == 0 ||
         errno != ENOMEM;
}

enum class Home { kAutoEngine, kThreadsEngine, kDaemon };

class AForkAtEachCall : public ForkedRounds,
                        public testing::WithParamInterface<Home> {
 protected:
  AForkAtEachCall() {
    DrawModel();
    // Its descriptors are there before anything is tested.
    if (GetParam() == Home::kDaemon) daemon_.emplace("");
  }
  void SetUp() override {
    ForkedRounds::SetUp();
    if (daemon_.has_value()) {
      ASSERT_TRUE(daemon_->Serves());
      on_path_ = daemon_->OnPath();
    }
  }

  // On a file that one runtime has at a time, and in a folder.
  Options ParentsOptions() const {
    Options options = ChildsOptions();
    if (!daemon_.has_value()) {
      options.paths.insert(options.paths.begin(), file_);
    }
    return options;
  }
  Options ChildsOptions() const {
    Options options;
    options.host_budget_bytes = 256 << 10;
    options.threads = 2;
    if (daemon_.has_value()) {
      options.daemon = daemon_->socket();
      return options;
    }
    options.huge_pages = HugePages::kOff;
    options.engine = GetParam() == Home::kThreadsEngine ? EngineKind::kThreads
                                                        : EngineKind::kAuto;
    options.paths = {folder_};
    return options;
  }

  void StartRuntime() {
    auto runtime = Runtime::Create(ParentsOptions());
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    has_runtime_ = true;
    TensorSpec spec;
    spec.name = "in memory";
    spec.size_bytes = kTensorBytes;
    const auto id = runtime_->Register(spec);
    ASSERT_TRUE(id.ok()) << id.status();
    memory_ = runtime_->Acquire(*id, Access::kOverwrite, Soon())->data().data();
    EXPECT_TRUE(runtime_->Unregister(*id).ok());
  }
  void StartOptimizer() {
    OptimizerOptions options;
    options.chunk_bytes = 64 << 10;
    auto optimizer =
        OffloadedOptimizer::Create(*runtime_, model_.specs(), options);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    optimizer_ = *std::move(optimizer);
    has_optimizer_ = true;
  }
  void DropOptimizer() {
    has_optimizer_ = false;
    optimizer_.reset();
  }
  void CloseRuntime() {
    memory_ = nullptr;
    const absl::Status status = runtime_->Close(Soon());
    EXPECT_TRUE(status.ok()) << status;
    has_runtime_ = false;
    runtime_.reset();
  }

  // Tensors of more bytes than memory holds.
  void FillTensors() {
    for (int i = 0; i < kTensors; ++i) {
      TensorSpec spec;
      spec.name = "tensor " + std::to_string(i);
      spec.size_bytes = kTensorBytes;
      const auto id = runtime_->Register(spec);
      ASSERT_TRUE(id.ok()) << id.status();
      tensors_.push_back(*id);
      auto pin = runtime_->Acquire(*id, Access::kOverwrite, Soon());
      ASSERT_TRUE(pin.ok()) << pin.status();
      std::memset(pin->data().data(), i + 1, kTensorBytes);
    }
  }
  void FetchAll() {
    for (int i = 0; i < kTensors; ++i) {
      const auto pin = runtime_->Acquire(tensors_[static_cast<size_t>(i)],
                                         Access::kRead, Soon());
      ASSERT_TRUE(pin.ok()) << pin.status();
      EXPECT_EQ(std::count(pin->data().begin(), pin->data().end(),
                           static_cast<std::byte>(i + 1)),
                kTensorBytes);
    }
  }

  // As before the first step.
  void DrawModel() {
    model_ = Model::Mixed(8);
    reference_ =
        std::make_unique<ReferenceOptimizer>(model_, OptimizerOptions());
  }
  void DrawGradients() {
    model_.DrawGradients(reference_->step() + 1);
    reference_->Step({}, model_);
  }
  void Step() {
    const absl::Status status = optimizer_->Step({}, model_.data(), Soon());
    EXPECT_TRUE(status.ok()) << status;
  }
  void ExpectReference() {
    EXPECT_EQ(reference_->Difference(model_), "");
    EXPECT_EQ(reference_->StateDifference(*optimizer_), "");
  }

  std::vector<CheckpointTensor> Tensors(Model& model) {
    std::vector<CheckpointTensor> tensors;
    for (ModelParameter& parameter : model.parameters()) {
      tensors.push_back(
          {.name = parameter.spec.name,
           .dtype = parameter.spec.dtype,
           .shape = {parameter.spec.count},
           .data = parameter.values.data(),
           .optimizer_parameter = static_cast<int>(tensors.size())});
    }
    return tensors;
  }
  absl::Status Save(const std::string& to) {
    const std::vector<CheckpointTensor> tensors = Tensors(model_);
    return SaveCheckpoint(
               to, {.parameters = tensors, .optimizer = optimizer_.get()},
               Soon())
        .status();
  }
  void ExpectSaved(const std::string& in) {
    auto checkpoint = Checkpoint::Open(in);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    Options options;
    options.host_budget_bytes = 512 << 10;
    options.huge_pages = HugePages::kOff;
    options.threads = 1;
    options.memory_paths = 1;
    options.memory_path_bytes = 16 << 20;
    const auto runtime = *Runtime::Create(options);
    Model model = Model::Mixed(9);
    const auto optimizer =
        *OffloadedOptimizer::Create(*runtime, model.specs(), {});
    const absl::Status loaded =
        (*checkpoint)->Load(Tensors(model), optimizer.get(), Soon());
    EXPECT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(reference_->Difference(model), "");
    EXPECT_EQ(reference_->StateDifference(*optimizer), "");
  }

  // In a child.
  bool IsRefused() {
    if (memory_ != nullptr && !Told(!IsMapped(memory_), "memory")) return false;
    return (!has_optimizer_ || OptimizerIsRefused()) &&
           (!has_runtime_ || RuntimeIsRefused());
  }
  bool RuntimeIsRefused() {
    TensorSpec spec;
    spec.name = "child's";
    spec.size_bytes = kTensorBytes;
    return Told(IsCancelled(runtime_->Register(spec).status()), "Register") &&
           Told(IsCancelled(runtime_->OpenQueue(4096, 1, Soon()).status()),
                "OpenQueue") &&
           Told(
               IsCancelled(runtime_->Acquire(TensorId{0}, Access::kRead, Soon())
                               .status()),
               "Acquire") &&
           Told(IsCancelled(runtime_->Close(Soon())), "Close") &&
           Told(runtime_->GetStats().paths().empty(), "GetStats");
  }
  bool OptimizerIsRefused() {
    return Told(IsCancelled(optimizer_->Step({}, model_.data(),
                                             absl::InfiniteFuture())),
                "Step") &&
           Told(IsCancelled(optimizer_->OpenStateReader().status()),
                "OpenStateReader") &&
           Told(IsCancelled(optimizer_->Reset(Soon())), "Reset") &&
           Told(IsCancelled(Save(childs_save_)), "SaveCheckpoint");
  }
  void GiveUp() {
    if (has_optimizer_) optimizer_.reset();
    if (has_runtime_) runtime_.reset();
  }
  bool WorkWithItsOwn() {
    auto runtime = Runtime::Create(ChildsOptions());
    if (!runtime.ok()) {
      return Told(false, std::string(runtime.status().message()).c_str());
    }
    Model model = Model::Mixed(10);
    ReferenceOptimizer reference(model, {});
    auto optimizer = OffloadedOptimizer::Create(**runtime, model.specs(), {});
    if (!Told(optimizer.ok(), "Create")) return false;
    model.DrawGradients(1);
    reference.Step({}, model);
    const bool is_good =
        Told((*optimizer)->Step({}, model.data(), Soon()).ok(), "own Step") &&
        Told(reference.Difference(model).empty(), "own values");
    optimizer->reset();
    return is_good && Told((*runtime)->Close(Soon()).ok(), "own Close");
  }

  void ExpectNothingBelow() {
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
    if (daemon_.has_value()) {
      EXPECT_EQ(daemon_->OnPath(), on_path_);
    }
  }

  // What every operation is told apart by: the rest is the same.
  ForkedOperation Operation() {
    return {.is_refused = [this] { return IsRefused(); },
            .give_up = [this] { GiveUp(); },
            .work = [this] { return WorkWithItsOwn(); },
            .calls_vary = daemon_.has_value()};
  }

  TemporaryDirectory directory_;
  const std::string file_ = directory_.Write("file", "");
  const std::string folder_ = directory_.MakeDirectory("folder");
  const std::string save_ = directory_.path() + "/save";
  const std::string childs_save_ = directory_.path() + "/childs";
  std::optional<RunningDaemon> daemon_;
  std::vector<std::string> on_path_;  // of the daemon, before
  Model model_;
  std::unique_ptr<ReferenceOptimizer> reference_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
  // Whole, and not just being made or destroyed.
  std::atomic<bool> has_runtime_ = false;
  std::atomic<bool> has_optimizer_ = false;
  std::vector<TensorId> tensors_;
  const void* memory_ = nullptr;  // of the runtime's arena
};
INSTANTIATE_TEST_SUITE_P(Homes, AForkAtEachCall,
                         testing::Values(Home::kAutoEngine,
                                         Home::kThreadsEngine, Home::kDaemon),
                         [](const auto& home) {
                           return home.param == Home::kAutoEngine ? "Auto"
                                  : home.param == Home::kThreadsEngine
                                      ? "Threads"
                                      : "Daemon";
                         });

TEST_P(AForkAtEachCall, OfAStep) {
  StartRuntime();
  StartOptimizer();
  ForkedOperation operation = Operation();
  operation.prepare = [this] { DrawGradients(); };
  operation.run = [this] { Step(); };
  operation.look = [this] { ExpectReference(); };
  Do(operation);
}

TEST_P(AForkAtEachCall, OfASave) {
  StartRuntime();
  StartOptimizer();
  ForkedOperation operation = Operation();
  operation.prepare = [this] {
    DrawGradients();
    Step();
  };
  operation.run = [this] {
    const absl::Status status = Save(save_);
    EXPECT_TRUE(status.ok()) << status;
  };
  operation.look = [this] { ExpectSaved(save_); };
  Do(operation);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(save_), {}), 3);
}

TEST_P(AForkAtEachCall, OfAFetch) {
  StartRuntime();
  FillTensors();
  ForkedOperation operation = Operation();
  operation.run = [this] { FetchAll(); };
  Do(operation);
}

TEST_P(AForkAtEachCall, OfAClose) {
  ForkedOperation operation = Operation();
  operation.prepare = [this] {
    StartRuntime();
    StartOptimizer();
    DrawGradients();
    Step();
    ExpectReference();
    DrawModel();
  };
  operation.run = [this] {
    DropOptimizer();
    CloseRuntime();
  };
  operation.look = [this] {
    StartRuntime();  // while the child lives
    CloseRuntime();
    ExpectNothingBelow();
  };
  Do(operation);
}

TEST_P(AForkAtEachCall, OfAStart) {
  ForkedOperation operation = Operation();
  operation.run = [this] {
    StartRuntime();
    StartOptimizer();
  };
  operation.look = [this] {
    DrawGradients();
    Step();
    ExpectReference();
    DrawModel();
    DropOptimizer();
    CloseRuntime();
    StartRuntime();
    CloseRuntime();
  };
  Do(operation);
}

}  // namespace
}  // namespace terrace
