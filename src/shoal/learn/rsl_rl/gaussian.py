"""rsl_rl's Gaussian distributions of actions, drawn without asking the device whether deviations are positive."""

import torch
from rsl_rl.modules import distribution


class GaussianDistribution(distribution.GaussianDistribution):
    """One standard deviation for each action."""

    def sample(self) -> torch.Tensor:
        """Return actions, of shape (num_envs, num_actions): the numbers that `torch.normal` draws.

        That first waits for the device to look at the deviations.
        """
        return self.mean + self.std * torch.randn_like(self.mean)


class HeteroscedasticGaussianDistribution(distribution.HeteroscedasticGaussianDistribution):
    """Standard deviations that follow from the observation."""

    sample = GaussianDistribution.sample
