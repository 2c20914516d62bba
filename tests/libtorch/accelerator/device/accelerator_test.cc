// LibTorch's device as programs meet it: values, views, sizes, memory, devices.
#include <c10/core/CachingDeviceAllocator.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/libtorch/accelerator/device/accelerator_fixture.h"
#include "tests/libtorch/accelerator/device/fault_exit.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

using AcceleratorTensors = AcceleratorTest;

TEST_F(AcceleratorTensors, HaveTheCpusValues) {
  const at::Tensor cpu = at::arange(12, at::kFloat).reshape({3, 4});
  const at::Tensor own = cpu.to(kDevice);
  EXPECT_EQ(own.device(), kDevice);
  const auto compute = [](const at::Tensor& x) {
    const at::Tensor y = at::softmax(x.mm(x.t()) * 0.1 + 1, 1);
    return at::cat({y, x.sum(1, /*keepdim=*/true)}, 1).sort(1);
  };
  EXPECT_TRUE(std::get<0>(compute(own)).cpu().equal(std::get<0>(compute(cpu))));
  EXPECT_TRUE(std::get<1>(compute(own)).cpu().equal(std::get<1>(compute(cpu))));
}

TEST_F(AcceleratorTensors, AreLateAndThere) {
  streams().SetDelays(/*seed=*/1, /*longest=*/1 << 20);
  const at::Tensor own = at::ones({4}, OnDevice());
  own.mul_(3);
  EXPECT_FALSE(c10::impl::VirtualGuardImpl(kDevice.type()).queryStream(kHome));
  EXPECT_EQ(own.sum().item<float>(), 12);
}

TEST_F(AcceleratorTensors, WhatDependsOnDataWaits) {
  const at::Tensor own = at::arange(6, OnDevice());
  EXPECT_EQ(at::nonzero(own > 3).sizes(), (std::vector<int64_t>{2, 1}));
  EXPECT_TRUE(own.index({own > 3}).cpu().equal(at::tensor({4.f, 5.f})));
  EXPECT_TRUE(own.masked_select(own < 1).cpu().equal(at::tensor({0.f})));
  EXPECT_TRUE(own.equal(own.clone()));
  at::Tensor out = at::empty({0}, OnDevice(at::kLong));
  at::nonzero_out(out, own > 4);
  EXPECT_EQ(out.item<int64_t>(), 5);
}

TEST_F(AcceleratorTensors, ViewsShareTheirStorage) {
  const at::Tensor own = at::zeros({4, 6}, OnDevice());
  own.select(0, 1).fill_(1);
  own.t().slice(0, 0, 6, 2).add_(2);
  own.view({24}).as_strided({2}, {23}).mul_(10);
  own.unfold(1, 3, 3).select(1, 1).sub_(0.5);
  at::Tensor cpu = at::zeros({4, 6});
  cpu.select(0, 1).fill_(1);
  cpu.t().slice(0, 0, 6, 2).add_(2);
  cpu.view({24}).as_strided({2}, {23}).mul_(10);
  cpu.unfold(1, 3, 3).select(1, 1).sub_(0.5);
  EXPECT_TRUE(own.cpu().equal(cpu));
  EXPECT_TRUE(own.t().is_alias_of(own));
}

TEST_F(AcceleratorTensors, OperandsMayBeNumbersOfTheCpu) {
  const at::Tensor own = at::ones({3}, OnDevice(at::kHalf));
  at::Tensor number = at::full({}, 2, at::kDouble);
  const at::Tensor sum = own + number;
  number.fill_(100);  // it has been taken
  EXPECT_EQ(sum.scalar_type(), at::kHalf);
  EXPECT_EQ(sum.sum().item<float>(), 9);
  EXPECT_THROW(own + at::ones({3}), c10::Error);
  EXPECT_THROW(own + at::ones({3}, own.options().device(kOther)), c10::Error);
}

TEST_F(AcceleratorTensors, IndicesMayBeOfTheCpu) {
  const at::Tensor own = at::arange(5, OnDevice());
  const at::Tensor indices = at::tensor({4, 0}, at::kLong);
  EXPECT_TRUE(own.index({indices}).cpu().equal(at::tensor({4.f, 0.f})));
  own.index_put_({indices}, at::full({2}, 7.f, OnDevice()));
  EXPECT_TRUE(own.cpu().equal(at::tensor({7.f, 1.f, 2.f, 3.f, 7.f})));
}

TEST_F(AcceleratorTensors, ResizeKeepsTheBytes) {
  at::Tensor own = at::arange(4, OnDevice());
  own.resize_({2, 4});
  own.select(0, 1).fill_(9);
  EXPECT_TRUE(own.cpu().equal(
      at::tensor({0.f, 1.f, 2.f, 3.f, 9.f, 9.f, 9.f, 9.f}).view({2, 4})));
  own.storage().unsafeGetStorageImpl()->set_nbytes(0);
  own.resize_({0});
  at::Tensor out = at::empty({0}, OnDevice());
  at::add_out(out, at::ones({2, 3}, OnDevice()), at::ones({3}, OnDevice()));
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(out.sum().item<float>(), 12);
  at::Tensor alias = at::empty({0}, OnDevice());
  alias.set_(out.storage(), 3, {3}, {1});
  alias.zero_();
  EXPECT_EQ(out.sum().item<float>(), 6);
}

TEST_F(AcceleratorTensors, CopiesConvertAndBroadcast) {
  const at::Tensor own = at::empty({2, 3}, OnDevice());
  own.copy_(at::tensor({1, 2, 3}, at::kInt));
  EXPECT_TRUE(
      own.cpu().equal(at::tensor({1.f, 2.f, 3.f, 1.f, 2.f, 3.f}).view({2, 3})));
  const at::Tensor cpu = at::empty({3, 2}, at::kDouble);
  cpu.copy_(own.t());
  EXPECT_EQ(cpu.sum().item<double>(), 12);
  own.copy_(own.clone().flip(1));
  EXPECT_EQ(own.select(1, 0).sum().item<float>(), 6);
}

TEST_F(AcceleratorTensors, SourcesOfTheCpuMayChangeOnceACopyIsGiven) {
  streams().SetDelays(/*seed=*/1, /*longest=*/1 << 20);
  at::Tensor cpu = at::ones({1000});
  const at::Tensor own = cpu.to(kDevice, /*non_blocking=*/true);
  cpu.zero_();
  EXPECT_EQ(own.sum().item<float>(), 1000);
}

TEST_F(AcceleratorTensors, ThereAreTwoDevices) {
  const at::Tensor first = at::ones({8}, OnDevice());
  const at::Tensor second = first.to(kOther);
  EXPECT_EQ(second.device(), kOther);
  second.add_(1);
  first.copy_(second);
  EXPECT_EQ(first.sum().item<float>(), 16);
  {
    const c10::DeviceGuard guard(kOther);
    const at::Tensor current =
        at::ones({1}, at::device(c10::DeviceType::PrivateUse1));
    EXPECT_EQ(current.device(), kOther);
  }
  EXPECT_THROW(at::empty({1}, at::device(AcceleratorDevice(2))), c10::Error);
}

TEST_F(AcceleratorTensors, AFailureOfAKernelComesOutOfTheNextWait) {
  const at::Tensor own = at::arange(3, OnDevice());
  const at::Tensor beyond = own.index({at::full({1}, 9, OnDevice(at::kLong))});
  try {
    beyond.cpu();
    FAIL() << "nothing was thrown";
  } catch (const TaskError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::index"));
    EXPECT_THAT(error.what(), HasSubstr("out of bounds"));
  }
  EXPECT_EQ(own.sum().item<float>(), 3);
  EXPECT_THROW(own.add(at::ones({2}, OnDevice())), c10::Error);  // at once
}

TEST_F(AcceleratorTensors, TheDeviceRunsOutAtItsLimit) {
  AcceleratorMemory& memory = TheAccelerator().memory(0);
  memory.SetLimit(static_cast<size_t>(memory.stats().allocated_bytes) +
                  (1 << 20));
  {
    const at::Tensor half = at::zeros({1 << 17}, OnDevice());
    const at::Tensor rest = at::zeros({1 << 17}, OnDevice());
    try {
      at::zeros({1}, OnDevice());
      FAIL() << "nothing was thrown";
    } catch (const c10::OutOfMemoryError& error) {
      EXPECT_THAT(error.what(), HasSubstr("testdev:0 is out of memory"));
      EXPECT_THAT(error.what(), HasSubstr("1048576"));
    }
    EXPECT_EQ(at::zeros({1}, OnDevice().device(kOther)).item<float>(), 0);
  }
  // Of another stream, too: its memory is released and taken.
  const c10::StreamGuard guard(kSide);
  const at::Tensor all = at::ones({1 << 18}, OnDevice());
  EXPECT_EQ(all.cpu().sum().item<float>(), 1 << 18);
  const auto stats = c10::getDeviceAllocator(kDevice.type())->getDeviceStats(0);
  EXPECT_GT(stats.num_ooms, 0);
  EXPECT_GE(stats.allocated_bytes[0].current, 1 << 20);
}

TEST_F(AcceleratorTensors, PinnedMemoryIsCopiedWithoutWaiting) {
  const at::Tensor cpu = at::arange(1000, at::kFloat).pin_memory();
  EXPECT_TRUE(cpu.is_pinned());
  EXPECT_FALSE(at::ones({4}).is_pinned());
  streams().SetDelays(/*seed=*/1, /*longest=*/1 << 20);
  const at::Tensor own = cpu.to(kDevice, /*non_blocking=*/true);
  EXPECT_FALSE(c10::impl::VirtualGuardImpl(kDevice.type()).queryStream(kHome));
  const at::Tensor back = at::empty({1000}).pin_memory();
  back.copy_(own * 2, /*non_blocking=*/true);
  WaitForAll();
  EXPECT_TRUE(back.equal(cpu * 2));
}

TEST_F(AcceleratorTensors, AForkedChildIsToldThatTheDeviceIsNotIts) {
  const at::Tensor own = at::ones({4}, OnDevice());
  const pid_t child = fork();
  if (child == 0) {
    bool is_told = false;
    try {
      own.add(1);
    } catch (const TaskError& error) {
      is_told = std::string(error.what()).find("forked") != std::string::npos;
    }
    // LibTorch would wait at its end for threads of autograd, which are not
    // here.
    setenv("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0", /*overwrite=*/1);
    exit(is_told ? 0 : 1);  // with the parent's streams in memory
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(own.sum().item<float>(), 4);
}

using AcceleratorDeathTest = AcceleratorTest;

TEST_F(AcceleratorDeathTest, TheCpuCannotReachATensorsAddress) {
  const at::Tensor own = at::ones({4}, OnDevice());
  auto* const address = own.data_ptr<float>();
  EXPECT_EXIT(static_cast<void>(*const_cast<volatile float*>(address)),
              EndsByFault, "");
  EXPECT_EXIT(*address = 1, EndsByFault, "");
}

TEST_F(AcceleratorDeathTest, AProcessEndsWithWorkQueued) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        streams().SetDelays(/*seed=*/1, /*longest=*/1 << 20);
        const at::Tensor own = at::ones({512, 512}, OnDevice());
        for (int round = 0; round < 50; ++round) own.copy_(own.mm(own));
        streams().SetDelays(/*seed=*/1, /*longest=*/0);
        exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace terrace
