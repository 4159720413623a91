// A small convolutional network that reads handwritten digits: your own libtorch module, trained with Yoke's library.
//
//   digits deps/digits.csv checkpoints 5                                              one rank, five epochs
//   yoke launch --nproc-per-node 2 -- digits deps/digits.csv checkpoints 10           two ranks, five more
//
// `float64` behind them trains in double precision, where rounding is too small to be taken for a mistake.
//
// A line of the file is an image: 64 pixels from 0 to 16, then the digit. Every fifth image is kept for the test.
#include <torch/torch.h>
#include <yoke/train.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Images {
  torch::Tensor pixels, digits;  // [n, 1, 8, 8] from 0 to 1, and [n]
};

struct Data {
  Images train, test;
};

yoke::Result<Data> read_images(const std::string& path) {
  std::ifstream file(path);
  std::vector<float> values;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) values.push_back(std::strtof(cell.c_str(), nullptr));
  }
  if (values.empty() || values.size() % 65 != 0)
    return yoke::fail(yoke::ErrorKind::usage, path + " does not hold lines of 65 numbers",
                      "scripts/setup puts it into deps/digits.csv");
  torch::Tensor table = torch::tensor(values).view({-1, 65});
  torch::Tensor is_test = torch::arange(table.size(0)) % 5 == 0;
  auto images = [](const torch::Tensor& rows) {
    return Images{(rows.slice(1, 0, 64) / 16).view({-1, 1, 8, 8}), rows.select(1, 64).to(torch::kLong)};
  };
  return Data{images(table.index({is_test.logical_not()})), images(table.index({is_test}))};
}

struct Net : torch::nn::Module {
  Net() {
    namespace nn = torch::nn;
    layers =
        register_module("layers", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)), nn::ReLU(),
                                                 nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)),
                                                 nn::ReLU(), nn::Flatten(), nn::Linear(32 * 4 * 4, 10)));
  }
  torch::Tensor forward(const torch::Tensor& pixels) { return layers->forward(pixels); }
  torch::nn::Sequential layers{nullptr};
};

// Each rank looks at every size-th test image.
yoke::Result<double> accuracy(yoke::Job& job, Net& net, const Images& test) {
  torch::NoGradGuard no_grad;
  using torch::indexing::Slice;
  Slice mine(job.rank(), torch::indexing::None, job.size());
  torch::Tensor correct = (net.forward(test.pixels.index({mine})).argmax(1) == test.digits.index({mine})).sum();
  YOKE_TRY_VOID(job.sum("correct answers", correct));
  return correct.item<double>() / static_cast<double>(test.digits.size(0));
}

yoke::Result<void> train(const std::string& data_path, const std::string& checkpoints, std::int64_t epochs,
                         torch::Dtype type) {
  YOKE_TRY(auto job, yoke::Job::from_environment());
  YOKE_TRY(Data data, read_images(data_path));
  torch::manual_seed(1);
  Net net;
  net.to(type);
  data.train.pixels = data.train.pixels.to(type);
  data.test.pixels = data.test.pixels.to(type);
  torch::optim::Adam adam(net.parameters(), 2e-3);
  YOKE_TRY(auto resumed, yoke::load_module(*job, checkpoints, net, &adam));
  // The loss below is a sum divided by the examples of the whole batch, so the ranks' gradients are to be summed.
  YOKE_TRY(auto parallel,
           yoke::DataParallelModule::wrap(*job, net, {.gradients = yoke::DataParallelOptions::Gradients::sum}));
  yoke::EpochSampler sampler(data.train.digits.size(0), /*global_batch=*/64, /*seed=*/1, job->rank(), job->size());

  for (std::int64_t epoch = std::max<std::int64_t>(resumed.step, 0); epoch < epochs; ++epoch) {
    for (std::int64_t b = 0; b < sampler.batches(); ++b) {
      torch::Tensor rows = torch::tensor(sampler.batch(epoch, b), torch::kLong);
      torch::Tensor scores = net.forward(data.train.pixels.index_select(0, rows));
      torch::Tensor loss =
          torch::nn::functional::cross_entropy(scores, data.train.digits.index_select(0, rows),
                                               torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
      adam.zero_grad();
      YOKE_TRY_VOID(parallel->backward(loss / sampler.batch_examples(b)));
      adam.step();
    }
    YOKE_TRY(double share, accuracy(*job, net, data.test));
    if (job->rank() == 0) std::printf("epoch %d  test accuracy %.4f\n", static_cast<int>(epoch + 1), share);
    YOKE_TRY_VOID(yoke::save_module(*job, checkpoints, epoch + 1, net, &adam));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const bool wide = argc == 5 && std::string(argv[4]) == "float64";
  if (argc != 4 && !wide) {
    std::fprintf(stderr, "usage: digits DIGITS.csv CHECKPOINTS EPOCHS [float64]\n");
    return 2;
  }
  auto done = train(argv[1], argv[2], std::atoi(argv[3]), wide ? torch::kDouble : torch::kFloat);
  if (done) return 0;
  std::fprintf(stderr, "error: %s\n%s\n", done.error().what.c_str(), done.error().hint.c_str());
  return yoke::exit_code(done.error().kind);
}
