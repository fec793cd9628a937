"""From images to features: settings, forward and backward passes, engines, and the store."""
